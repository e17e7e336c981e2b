"""The page's server: this machine alone, reading alone, and no file but the pictures that the corpus names."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from urllib.parse import parse_qsl

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.errors import InputError
from pipelines.searching.answers import AnswerSearch
from pipelines.searching.retrieval import RetrievalSearch
from pipelines.searching.views import Page, Views

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self' data:; style-src 'self'; form-action 'self'; base-uri 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
DECODED = 4  # pictures made at once; threads for the others, which wait for the model, are not used up
FIELDS = 10  # of an address


class Server:
    """Serves the pages of one trained model on 127.0.0.1, whose port it holds from the start.

    Args:
        searched: the model, ready for queries.
        title: of the pages.
        port: 0 for a free one.
        k: results.

    Raises:
        InputError: the port is taken, or none.
    """

    def __init__(
        self, searched: RetrievalSearch | AnswerSearch, *, title: str, port: int = 0, k: int = 0
    ) -> None:
        self.views = Views(searched, title=title, k=k)
        self._socket = socket.socket()
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a port is free when its server ended
        try:
            self._socket.bind((HOST, port))
            self._socket.listen(socket.SOMAXCONN)
        except (OSError, OverflowError) as error:
            self.close()
            raise InputError(
                f"port {port} of {HOST} cannot be had: {error}; choose another with --port"
            ) from error
        config = uvicorn.Config(
            application(self.views, self.address),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # requests hold what people look for
            server_header=False,
        )
        self._server = uvicorn.Server(config)

    @property
    def port(self) -> int:
        """The port."""
        return self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.port}/"

    def run(self) -> None:
        """Serve until `stop`, or Ctrl-C in the main thread; queries that are under way are finished."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` return."""
        self._server.should_exit = True

    def close(self) -> None:
        """Free the port, and end the process that decodes videos."""
        self._socket.close()
        self.views.close()


def serve(searched: RetrievalSearch | AnswerSearch, *, title: str, port: int = 0, k: int = 0) -> None:
    """Serve until Ctrl-C."""
    with contextlib.closing(Server(searched, title=title, port=port, k=k)) as server:
        print(f"{server.address}  (Ctrl-C ends it)", flush=True)
        try:
            server.run()
        except KeyboardInterrupt:
            print()


def application(views: Views, address: str) -> ASGIApp:
    """Return the application, an ASGI callable.

    Args:
        views: make the pages.
        address: of the server, for those who came by another name.
    """
    style, decoders = (
        (files("pipelines.searching") / "templates/style.css").read_bytes(),
        CapacityLimiter(DECODED),
    )

    async def index(request: Request) -> Response:
        return _html(await to_thread.run_sync(views.page, _query(request)))

    async def stylesheet(request: Request) -> Response:
        return Response(style, media_type="text/css")

    async def picture(request: Request, *, make: Callable[[str], bytes | None], media_type: str) -> Response:
        data = await to_thread.run_sync(make, _query(request).get("id", ""), limiter=decoders)
        if not data:
            raise HTTPException(404)
        return Response(data, media_type=media_type, headers={"Cache-Control": "private, max-age=600"})

    async def failed(request: Request, error: HTTPException) -> Response:
        texts = {400: "an address that cannot be read", 404: "there is nothing at this address"}
        page = _html(views.message(error.status_code, texts.get(error.status_code, error.detail)))
        page.headers.update(error.headers or {})
        return page

    still = partial(picture, make=views.pictures.still, media_type="image/jpeg")
    moving = partial(picture, make=views.pictures.moving, media_type="image/webp")
    routes = [
        Route(path, endpoint, methods=["GET"])
        for path, endpoint in (
            ("/", index),
            ("/style.css", stylesheet),
            ("/picture", still),
            ("/clip", moving),
        )
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: failed})
    app.router.redirect_slashes = False
    return _Guard(app, views.message(403, f"this page is {address}"))


class _Guard:
    """Answers those alone who came by this machine's name, and puts the headers on every response.

    A page of elsewhere whose name was made to lead here has another one.
    """

    def __init__(self, app: ASGIApp, refusal: Page) -> None:
        self.app, self.refusal = app, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        host = Headers(scope=scope).get("host", "").partition(":")[0]
        app = self.app if host in (HOST, "localhost") else _html(self.refusal)
        await app(scope, receive, send_guarded)


def _html(page: Page) -> HTMLResponse:
    return HTMLResponse(page.html.encode("utf-8", "replace"), status_code=page.status)


def _query(request: Request) -> dict[str, str]:
    """Return the parameters of an address, the last one of a name."""
    try:
        return dict(parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=FIELDS))
    except ValueError as error:
        raise HTTPException(400) from error
