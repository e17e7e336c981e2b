"""The page's server: this machine alone, reading alone, and no file but the pictures that the corpus names."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from infra.errors import InputError
from pipelines.searching import page
from pipelines.searching.answerer import Answerer
from pipelines.searching.finder import Finder
from pipelines.searching.views import Views

HOST = "127.0.0.1"
POLICY = "default-src 'none'; img-src 'self' data:; style-src 'self'; form-action 'self'; base-uri 'none'"
HTML = "text/html; charset=utf-8"


class Server(ThreadingHTTPServer):
    """Serves the views of one trained model on 127.0.0.1.

    Args:
        asked: the model, ready to be asked.
        title: of the page.
        port: 0 for a free one.
        k: results.

    Raises:
        InputError: the port is taken, or none.
    """

    daemon_threads = True

    def __init__(self, asked: Finder | Answerer, *, title: str, port: int = 0, k: int = 0) -> None:
        self.views, self.title = Views(asked, k=k), title
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"port {port} of {HOST} cannot be had: {error}; choose another with --port"
            ) from error

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say what went wrong, unless it is that a browser went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Stop listening, and end the process that decodes videos."""
        super().server_close()
        self.views.close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "polypool", ""
    timeout = 30  # seconds for a request to come

    def do_GET(self) -> None:
        """Answer with a page or a picture."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in (HOST, "localhost"):  # a page of elsewhere whose name was made to lead here
            return self._page(403, page.alert(f"this page is {self.server.address}"))
        try:
            address = urlsplit(self.path)
            query = dict(parse_qsl(address.query, keep_blank_values=True, max_num_fields=10))
        except ValueError:
            return self._page(400, page.alert("an address that cannot be read"))
        pictures = self.server.views.pictures
        makers = {"/picture": (pictures.still, "image/jpeg"), "/clip": (pictures.moving, "image/webp")}
        if address.path == "/":
            return self._page(*self.server.views.body(query))
        if address.path == "/style.css":
            return self._send(200, "text/css; charset=utf-8", page.STYLE.encode())
        if address.path in makers:
            make, kind = makers[address.path]
            if data := make(query.get("id", "")):
                return self._send(200, kind, data)
        return self._page(404, page.alert("there is nothing at this address"))

    do_HEAD = do_GET

    def _page(self, status: int, body: str) -> None:
        self._send(status, HTML, page.page(self.server.title, body).encode("utf-8", "replace"))

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests hold what people look for."""


def serve(asked: Finder | Answerer, *, title: str, port: int = 0, k: int = 0) -> None:
    """Serve until Ctrl-C."""
    with Server(asked, title=title, port=port, k=k) as server:
        print(f"{server.address}  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
