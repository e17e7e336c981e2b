"""The page's server: this machine alone, no file but the pictures that the corpus names, and nothing that is kept."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from importlib.resources import files
from types import FrameType
from typing import TypeVar
from urllib.parse import parse_qsl

import uvicorn
from anyio import CapacityLimiter, fail_after, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from infra.errors import InputError
from infra.process.stopping import end_at_once
from pipelines.searching.answers import AnswerSearch
from pipelines.searching.connection import Connection
from pipelines.searching.galleries import AT_ONCE
from pipelines.searching.guard import HOST, Guard, html
from pipelines.searching.pictures import Pictures
from pipelines.searching.retrieval import RetrievalSearch
from pipelines.searching.together import BusyError, Together
from pipelines.searching.uploads import LARGEST, Asked, read_form
from pipelines.searching.views import Page, Views

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self' data:; style-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
FIELDS = 10  # of an address
WAITING = 256  # queries that wait for the model, and pictures to be made
PATIENCE = 60  # seconds that one waits
ENDING = 4.5  # seconds after Ctrl-C at which the process ends, whatever the model is at
DECODED = 4  # pictures made at once
UPLOADS = 4  # files that are held at once


Answer = TypeVar("Answer")


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
            http=Connection,
            headers=list(HEADERS.items()),
            h11_max_incomplete_event_size=32 << 10,  # bytes of a request's head
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what strangers send is no news
            access_log=False,  # requests hold what people look for
            server_header=False,
        )
        self._server = _Stoppable(config)

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
        try:
            self._server.run(sockets=[self._socket])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # nothing is under way

    def stop(self) -> None:
        """Let `run` return."""
        self._server.should_exit = True

    def close(self) -> None:
        """Free the port, and end the process that decodes videos."""
        self._socket.close()
        self.views.close()


class _Stoppable(uvicorn.Server):
    """Finishes at a signal what is under way, for a few seconds: the model's thread cannot be told to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        super().handle_exit(sig, frame)
        signal.signal(signal.SIGALRM, lambda *_: end_at_once(sig))
        signal.setitimer(signal.ITIMER_REAL, ENDING)


def serve(searched: RetrievalSearch | AnswerSearch, *, title: str, port: int = 0, k: int = 0) -> None:
    """Serve until Ctrl-C."""
    if isinstance(searched, RetrievalSearch):
        _ = searched.items_gallery  # encoded before anyone asks
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
    style = (files("pipelines.searching") / "templates/style.css").read_bytes()
    page = Together(views.pages, at_once=AT_ONCE, waiting=WAITING)
    uploads = CapacityLimiter(UPLOADS)
    pictures = _KeptPictures(views.pictures)

    async def index(request: Request) -> Response:
        if request.method != "POST":
            return html(await _in_time(page(Asked(query=_query(request)))))
        return html(await _in_time(sent(request)))

    async def sent(request: Request) -> Page:
        async with uploads:
            try:
                return await page(await read_form(request.headers, request.stream(), fields=FIELDS))
            except InputError as error:  # of the form: those of what it asks are on the page
                return views.message(400, str(error))

    async def stylesheet(request: Request) -> Response:
        return Response(style, media_type="text/css")

    async def failed(request: Request, error: HTTPException) -> Response:
        texts = {400: "an address that cannot be read", 404: "there is nothing at this address"}
        page = html(views.message(error.status_code, texts.get(error.status_code, error.detail)))
        page.headers.update(error.headers or {})
        return page

    endpoints = {"/": index, "/style.css": stylesheet, "/picture": pictures.still, "/clip": pictures.moving}
    routes = [
        Route(path, endpoint, methods=["GET", "POST"] if path == "/" else ["GET"])
        for path, endpoint in endpoints.items()
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: failed})
    app.router.redirect_slashes = False
    refusals = {403: f"this page is {address}", 413: f"at most a file of {LARGEST:,} bytes is taken"}
    return Guard(app, {status: views.message(status, text) for status, text in refusals.items()})


class _KeptPictures:
    """Small pictures over HTTP, made in a few threads, and once."""

    def __init__(self, pictures: Pictures) -> None:
        self.still = partial(self._picture, make=pictures.still, media_type="image/jpeg")
        self.moving = partial(self._picture, make=pictures.moving, media_type="image/webp")
        self._kept = pictures.kept
        self._decoders = CapacityLimiter(DECODED)

    async def _picture(
        self, request: Request, *, make: Callable[[str], bytes | None], media_type: str
    ) -> Response:
        id = _query(request).get("id", "")
        data = self._kept.get((id, media_type)) or await _in_time(self._made(make, id))
        if not data:
            raise HTTPException(404)
        if len(data) <= self._kept.maxsize:
            self._kept[id, media_type] = data
        headers = {"Cache-Control": "private, max-age=600", "ETag": f'"{sha256(data).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=media_type, headers=headers)

    async def _made(self, make: Callable[[str], bytes | None], id: str) -> bytes | None:
        if self._decoders.statistics().tasks_waiting >= WAITING:
            raise BusyError
        return await to_thread.run_sync(make, id, limiter=self._decoders)


async def _in_time(answer: Awaitable[Answer]) -> Answer:
    """Return an answer, unless it is long in coming.

    Raises:
        HTTPException: 503, and when to ask again.
    """
    try:
        with fail_after(PATIENCE):
            return await answer
    except (BusyError, TimeoutError) as error:
        text = "too much is asked at once; try again in a moment"
        raise HTTPException(503, text, headers={"Retry-After": "2"}) from error


def _query(request: Request) -> dict[str, str]:
    """Return the parameters of an address, the last one of a name."""
    try:
        return dict(parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=FIELDS))
    except ValueError as error:
        raise HTTPException(400) from error
