"""An S3 server in this process, with faults that tests choose."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs as fs

KEYS = {"AWS_ACCESS_KEY_ID": "an-access-key", "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-tests"}


@dataclass(kw_only=True)
class Fault:
    """A fault in the responses to some requests.

    Args:
        spoil: maps a response body to the one that is sent; None to send `status` instead.
        key: suffix of the affected keys.
        method: HTTP method of the affected requests.
        times: number of affected requests.
        status: HTTP status that is sent if `spoil` is None.
    """

    spoil: Callable[[bytes], Iterable[bytes]] | None = None
    key: str = ""
    method: str = "GET"
    times: int = 1
    status: str = "503 Slow Down"


@dataclass
class Server:
    """A server that wraps moto's WSGI application."""

    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and key of each."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self._server.port}"

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        method, key = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.requests.append((method, key))
            meant = (one for one in self.faults if one.method == method and key.endswith(one.key))
            fault = next((one for one in meant if one.times), None)
            if fault:
                fault.times -= 1
        if fault and fault.spoil is None:
            start_response(fault.status, [("Content-Length", "0")])
            return []
        answer = self._moto(environ, start_response)
        return fault.spoil(b"".join(answer)) if fault else answer

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@dataclass
class Bucket:
    """A bucket for one test."""

    server: Server
    name: str

    @property
    def url(self) -> str:
        """The bucket's URL."""
        return f"s3://{self.name}"

    @property
    def system(self) -> fs.S3FileSystem:
        """A client that can create and delete buckets."""
        return fs.S3FileSystem(
            access_key="other",
            secret_key="other",
            region="us-east-1",
            endpoint_override=self.server.endpoint,
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def put(self, folder: Path, name: str) -> str:
        """Copy a folder into the bucket; return the copy's URL."""
        fs.copy_files(str(folder), f"{self.name}/{name}", destination_filesystem=self.system)
        return f"{self.url}/{name}"

    def keys(self, below: str = "") -> list[str]:
        """Return the keys of all files below a key."""
        selector = fs.FileSelector(f"{self.name}/{below}".rstrip("/"), recursive=True, allow_not_found=True)
        found = self.system.get_file_info(selector)
        return sorted(info.path.removeprefix(f"{self.name}/") for info in found if info.is_file)

    def read(self, key: str) -> bytes:
        """Return a file's bytes."""
        with self.system.open_input_stream(f"{self.name}/{key}") as file:
            return file.read()

    def asked(self, end: str) -> list[str]:
        """Return the keys read so far that end with `end`."""
        return [key for method, key in self.server.requests if method == "GET" and key.endswith(end)]
