"""A folder as a read-only S3 bucket with the speed of a network: a rate of bytes, and a delay before each request."""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from polypool.infra.tracking.location import environment

_CHUNK = 256 << 10


@dataclass(frozen=True, kw_only=True)
class Link:
    """How fast the server is.

    Args:
        rate: bytes a second, of all answers together.
        latency: seconds before the first byte of each.
    """

    rate: float = 100e6
    latency: float = 0.02


@contextmanager
def bucket(folder: Path, link: Link, cache: Path) -> Iterator[Synchronized]:
    """Serve the files of a folder as `s3://bench/...` from a process of its own, which ends with the block.

    Args:
        folder: what is served.
        link: how fast.
        cache: the folder of what this process fetches.

    Yields:
        The bytes of bodies that were sent so far, as `value`.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    sent = context.Value("q", 0)
    server = context.Process(target=_serve, args=(folder, link, theirs, sent), daemon=True)
    server.start()
    theirs.close()  # so that an end of the server is heard
    port = ours.recv()
    names = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
        "POLYPOOL_CACHE": str(cache),
    }
    try:
        with environment(names):
            yield sent
    finally:
        server.terminate()
        server.join()


class _Throttle:
    """Lets answers through one chunk after another, at a rate."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def wait(self, count: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + count / self._rate
            pause = self._free - time.monotonic()
        time.sleep(max(0.0, pause))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, folder: Path, link: Link, throttle: _Throttle, sent: Synchronized) -> None:
        self.folder, self.link, self.throttle, self.sent = folder, link, throttle, sent
        super().__init__(*args)

    def do_HEAD(self) -> None:
        """Say how large a file is."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Send a file, or a range of it."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.folder / self.path.removeprefix("/bench/").partition("?")[0]
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        time.sleep(self.link.latency)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", '"benchmark"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            while body and start < end:
                chunk = file.read(min(_CHUNK, end - start))
                self.throttle.wait(len(chunk))
                self.wfile.write(chunk)
                start += len(chunk)
                with self.sent.get_lock():
                    self.sent.value += len(chunk)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _serve(folder: Path, link: Link, port: Connection, sent: Synchronized) -> None:
    handler = partial(_Handler, folder=folder, link=link, throttle=_Throttle(link.rate), sent=sent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    port.send(server.server_port)
    server.serve_forever()
