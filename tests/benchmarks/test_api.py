"""The load on the HTTP API."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.searching import api


class Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    most, now, lock = 0, 0, threading.Lock()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            Slow.now += 1
            Slow.most = max(Slow.most, Slow.now)
        time.sleep(0.05)
        with self.lock:
            Slow.now -= 1
        texts = [row["text"] for row in body["rows"]]
        hits = [] if texts == ["none"] else [{"id": texts[0]}] * body["k"]
        content = json.dumps({"rows": [{"hits": hits}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def slow_server():
    Slow.most = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("clients", [1, 4])
def test_each_client_sends_its_next_text_after_its_last_answer(clients):
    with slow_server() as port:
        waited_Q = api.load(port, [str(number) for number in range(8)], clients=clients)
        assert [hit["id"] for hit in api.ask(port, "7")] == ["7"] * api.K
    assert len(waited_Q) == 8
    assert min(waited_Q) >= 0.05
    assert Slow.most == clients


def test_an_answer_without_results_is_none():
    with slow_server() as port, pytest.raises(RuntimeError, match="the answer to 'none' is 200"):
        api.load(port, ["none"], clients=1)
