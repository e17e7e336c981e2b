"""The application: addresses of the page and the HTTP API, and how they answer or refuse. It knows no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp

from polypool.infra.errors import AwayError, FaultError, InputError
from polypool.pipelines.figures.pages.document import templates
from polypool.pipelines.models.table_rows import plain
from polypool.pipelines.serving.guard import Guard, busy, failure
from polypool.pipelines.serving.model import Model
from polypool.pipelines.serving.page import PageRequest
from polypool.pipelines.serving.schema import (
    Answer,
    Described,
    Embedding,
    Failure,
    Hits,
    Results,
    Route,
    Rows,
    Score,
    SearchRows,
    read_rows,
)
from polypool.pipelines.serving.settings import Settings

FIELDS = 10  # of an address or a form
FILE = "file"  # the form's name of the uploaded file
_PACKAGE = "polypool.pipelines.serving"
_ANSWERS: dict[Route, tuple[type, str]] = {
    "embed": (
        Results[Embedding],
        "The embedding of each row, which has one of `features`, `image` and `text`.",
    ),
    "score": (Results[Score], "The similarity of `features` or `image` and `text` of each row."),
    "answer": (
        Results[Answer],
        "The most probable answer to the question `text` about `features` or `image` of each row.",
    ),
    "search": (
        Results[Hits],
        "The items most like each row's `text`; the captions most like its `features` or `image`.",
    ),
}
"""What an address gives, and what OpenAPI says of it."""
_REFUSALS = {
    "4XX": "400: a row or the body cannot be used, and the message names the row, from 0; 401: no token, or "
    "another one; 411: no Content-Length; 413: too large",
    "503": "too many requests, or the model is away; try again after `Retry-After` seconds",
}


def application(described: Described, settings: Settings, model: Model) -> ASGIApp:
    """Return the page and the API of a model as one ASGI application.

    Args:
        described: what is served.
        settings: who is answered, and how much.
        model: answers.
    """
    app = FastAPI(
        title=f"polypool: {described.title}",
        description=f"{described.aggregator} on {described.task}, of {described.source}",
        docs_url=None,  # pages that fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    endpoints = _Endpoints(described, settings, model)
    app.add_api_route("/", endpoints.index, methods=["GET"], response_model=Described)
    app.add_api_route("/health", endpoints.health, methods=["GET"], response_model=dict[str, str])
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": Failure, "description": text} for status, text in _REFUSALS.items()
    }
    for route in described.routes:
        answer, about = _ANSWERS[route]
        endpoint = endpoints.search if route == "search" else endpoints.rows(route)
        app.add_api_route(
            f"/{route}",
            endpoint,
            methods=["POST"],
            name=route,
            description=about,
            response_model=answer,
            responses=refusals,
        )
    if described.page:
        app.add_route("/", endpoints.upload, methods=["POST"], include_in_schema=False)
        shown = {"picture": endpoints.picture, "clip": endpoints.picture, "style.css": endpoints.style}
        for name, endpoint in shown.items():
            app.add_route(f"/{name}", endpoint, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(AwayError, _away)
    app.add_exception_handler(FaultError, _broken)
    app.add_exception_handler(Exception, _broken)
    return Guard(app, settings)


class _InMemory(MultiPartParser):
    """Keeps an uploaded file out of every folder."""

    spool_max_size = 1 << 40


class _Endpoints:
    def __init__(self, described: Described, settings: Settings, model: Model) -> None:
        self.described, self.settings, self.model = described, settings, model
        self._template = templates(_PACKAGE).get_template("page.html.j2")
        self._style = (files(_PACKAGE) / "templates/style.css").read_bytes()

    async def index(self, request: Request) -> Response:
        """What is served, and its limits; for browsers the page."""
        if self.described.page and "text/html" in request.headers.get("accept", ""):
            return await self._page(request, PageRequest(fields=_fields(request)))
        return JSONResponse(self.described.model_dump())

    async def health(self, request: Request) -> Response:
        """Whether the model answers: an example goes through it."""
        try:
            async with self._in_time():
                await self.model.check()
        except AwayError:
            raise
        except Exception as error:
            raise AwayError("the model does not answer; the log of the service says why") from error
        return JSONResponse({"status": "ok"})

    def rows(self, route: Route) -> Callable[..., Awaitable[Response]]:
        """Return what answers the rows of a request of this route."""

        async def answer(request: Request, body: Rows) -> Response:
            return await self._rows(request, route, body)

        return answer

    async def search(self, request: Request, body: SearchRows) -> Response:
        return await self._rows(request, "search", body, k=body.k)

    async def _rows(self, request: Request, route: Route, body: Rows, k: int = 1) -> Response:
        try:
            requests = read_rows(route, body.rows, self.described, self.settings.limits, k=k)
        except InputError as error:
            return failure(request.headers, 400, str(error))
        async with self._in_time():
            found = await self.model.answer(requests)
        rows = []
        for number, answer in enumerate(found):
            if isinstance(answer, Exception):
                status = 400 if isinstance(answer, InputError) else 500
                return failure(request.headers, status, f"row {number}: {answer}")
            rows.append(plain(answer.get("answers", [answer])[0]))  # of several answers the first
        return JSONResponse({"rows": rows})

    async def upload(self, request: Request) -> Response:
        """The page for an uploaded file."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            return failure(request.headers, 400, "expected a form with a file; send one from this page")
        try:
            parser = _InMemory(request.headers, request.stream(), max_files=1, max_fields=FIELDS)
            form = await parser.parse()
        except MultiPartException as error:
            return failure(request.headers, 400, f"the form cannot be read: {error.message}")
        try:
            sent = form.get(FILE)
            data = await sent.read() if isinstance(sent, UploadFile) else b""
        finally:
            await form.close()
        if not data:
            return failure(request.headers, 400, "choose a file first")
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        return await self._page(request, PageRequest(fields=fields, upload=data))

    async def _page(self, request: Request, page: PageRequest) -> Response:
        async with self._in_time():
            content = await self.model.page(page)
        html = self._template.render(
            title=self.described.title,
            root=request.scope.get("root_path", ""),
            longest=self.settings.limits.max_characters,
            **content.values,
        )
        return HTMLResponse(html, status_code=content.status)

    async def picture(self, request: Request) -> Response:
        """A small picture of an item at `/picture`, a few frames of a video at `/clip`."""
        moving = request.url.path.endswith("/clip")
        async with self._in_time():
            data = await self.model.picture(_fields(request).get("id", ""), moving)
        if not data:
            raise HTTPException(404)
        headers = {"Cache-Control": "private, max-age=600", "ETag": f'"{sha256(data).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type="image/webp" if moving else "image/jpeg", headers=headers)

    async def style(self, request: Request) -> Response:
        """The style sheet."""
        return Response(self._style, media_type="text/css")

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        patience = self.settings.limits.patience
        try:
            async with asyncio.timeout(patience):
                yield
        except TimeoutError as error:
            raise AwayError(f"no answer in {patience:g} seconds; try again in a moment") from error


def _fields(request: Request) -> dict[str, str]:
    """Return the parameters of an address, the last one of a name."""
    if len(request.query_params.multi_items()) > FIELDS:
        raise HTTPException(400, "an address with too many parameters")
    return dict(request.query_params)


async def _invalid(request: Request, error: Exception) -> Response:
    """Report the first of the fields that do not fit."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return failure(request.headers, 400, f"the body is no JSON: {first.get('ctx', {}).get('error', '')}")
    kind = request.headers.get("content-type", "")
    if not where and kind.partition(";")[0].strip().lower() != "application/json":
        text = 'send JSON, {"rows": [...]}, with the header Content-Type: application/json'
        return failure(request.headers, 400, text)
    at = ""
    if where[:1] == ["rows"] and len(where) > 1:
        at, where = f"row {where[1]}: ", where[2:]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
    return failure(request.headers, 400, f"{at}{name + ': ' if name else ''}{first['msg']}")


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {
        404: "there is nothing at this address; GET / says what there is",
        405: "this address takes another method; GET /openapi.json says which",
    }
    if error.status_code == 400 and request.method == "POST":
        texts[400] = "the body cannot be read as JSON"
    text = texts.get(error.status_code, str(error.detail))
    return failure(request.headers, error.status_code, text, **dict(error.headers or {}))


async def _away(request: Request, error: Exception) -> Response:
    return busy(request.headers, str(error))


async def _broken(request: Request, error: Exception) -> Response:
    text = "the service failed at this request; its log says why"
    return failure(request.headers, 500, str(error) if isinstance(error, FaultError) else text)
