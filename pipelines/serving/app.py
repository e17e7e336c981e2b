"""The application: the page and the HTTP API of a model, and how they answer or refuse."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response

from polypool.infra.errors import AwayError, FaultError, InputError
from polypool.pipelines.figures.pages.document import templates
from polypool.pipelines.models.table_rows import plain
from polypool.pipelines.serving.page import Page
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
from polypool.pipelines.serving.service import RowQueue, Service
from polypool.pipelines.serving.settings import digest

FIELDS = 10  # of an address or a form
_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self' data:; style-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every response that does not set them itself."""
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
_REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": Failure,
        "description": "400: a row or the body cannot be used, and the message names the row, from 0; 401: no token, "
        "or another one; 411: no Content-Length; 413: too large",
    },
    "503": {
        "model": Failure,
        "description": "too many requests, or the model is away; try again after `Retry-After` seconds",
    },
}


def application(service: Service) -> FastAPI:
    """Return the page and the API of a loaded model."""
    described, settings, limits = service.described, service.settings, service.settings.limits
    queue = RowQueue(service)
    app = FastAPI(
        title=f"polypool: {described.title}",
        description=f"{described.aggregator} on {described.task}, of {described.source}",
        docs_url=None,  # pages that fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    bearer = HTTPBearer(auto_error=False)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Check token and size before the body is read, and add the headers."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        sent, size = None, request.headers.get("content-length", "")
        most = limits.max_body_mib * (1 << 20) if request.method == "POST" else 0
        if settings.token and path != "/health":  # which monitoring asks
            sent = await bearer(request)
            known = sent is not None and hmac.compare_digest(digest(sent.credentials), settings.token)
        if settings.token and path != "/health" and not known:
            text = "send the token of this service: Authorization: Bearer TOKEN"
            response = failure(request, 401, text, **{"WWW-Authenticate": "Bearer"})
        elif request.method == "POST" and not size.isdigit():
            response = failure(request, 411, "say by Content-Length how much the request brings")
        elif int(size or 0) > most:
            response = failure(request, 413, f"a request of {size} bytes; at most {most:,.0f} are taken")
        else:
            response = await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    if settings.local and not settings.token:  # a page of another site may have a name of this machine
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)

    async def in_time(work: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(work, limits.patience)
        except TimeoutError as error:
            raise AwayError(f"no answer in {limits.patience:g} seconds; try again in a moment") from error

    @app.get("/health")
    async def health(request: Request) -> dict[str, str]:
        """Whether the model answers: an example goes through it."""
        try:
            await in_time(to_thread.run_sync(service.check))
        except AwayError:
            raise
        except Exception as error:
            raise AwayError("the model does not answer; the log of the service says why") from error
        return {"status": "ok"}

    def add_rows(route: Route) -> None:
        async def rows(request: Request, body: Any) -> Response:
            requests = read_rows(route, body.rows, described, limits, k=getattr(body, "k", 1))
            found = []
            for number, answer in enumerate(await in_time(queue.answer(requests))):
                if isinstance(answer, Exception):
                    raise type(answer)(f"row {number}: {answer}")
                found.append(plain(answer.get("answers", [answer])[0]))  # of several answers the first
            return JSONResponse({"rows": found})

        rows.__annotations__["body"] = SearchRows if route == "search" else Rows
        answer, about = _ANSWERS[route]
        options: dict[str, Any] = {"response_model": answer, "responses": _REFUSALS}
        app.add_api_route(f"/{route}", rows, methods=["POST"], name=route, description=about, **options)

    for route in described.routes:
        add_rows(route)
    page = _add_page(app, Page(service, queue), in_time) if described.page else None

    @app.get("/", response_model=Described)
    async def index(request: Request) -> Response:
        """What is served, and its limits; for browsers the page."""
        if page and "text/html" in request.headers.get("accept", ""):
            return await page(request, b"", _fields(request))
        return JSONResponse(described.model_dump())

    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, AwayError):
            return failure(request, 503, str(error), **{"Retry-After": "1"})
        if isinstance(error, HTTPException):
            return failure(request, error.status_code, str(error.detail), **dict(error.headers or {}))
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            return failure(request, 400, f"{where}: {first['msg']}" if where else first["msg"])
        if isinstance(error, InputError):
            return failure(request, 400, str(error))
        text = "the service failed at this request; its log says why"
        return failure(request, 500, str(error) if isinstance(error, FaultError) else text)

    for kind in (HTTPException, RequestValidationError, InputError, FaultError, Exception):
        app.add_exception_handler(kind, refuse)
    return app


def _add_page(
    app: FastAPI, page: Page, in_time: Callable[[Awaitable[Any]], Awaitable[Any]]
) -> Callable[[Request, bytes, dict[str, str]], Awaitable[Response]]:
    """Add the addresses of the page; return what makes it of an upload and fields."""
    template = templates(_PACKAGE).get_template("page.html.j2")
    style = (files(_PACKAGE) / "templates/style.css").read_bytes()
    described, longest = page.service.described, page.service.settings.limits.max_characters

    async def shown(request: Request, upload: bytes, fields: dict[str, str]) -> Response:
        status, values = await in_time(page.content(fields, upload))
        root = request.scope.get("root_path", "")
        html = template.render(title=described.title, root=root, longest=longest, **values)
        return HTMLResponse(html, status_code=status)

    @app.post("/", include_in_schema=False)
    async def upload(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise InputError("expected a form with a file; send one from this page")
        async with request.form(max_files=1, max_fields=FIELDS) as form:
            sent = form.get("file")
            data = await sent.read() if isinstance(sent, UploadFile) else b""
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
        if not data:
            raise InputError("choose a file first")
        return await shown(request, data, fields)

    @app.get("/picture", include_in_schema=False)
    @app.get("/clip", include_in_schema=False)
    async def picture(request: Request, id: str = "") -> Response:
        moving = request.url.path.endswith("/clip")
        data = await in_time(to_thread.run_sync(page.picture, id, moving, limiter=page.decoders))
        if not data:
            raise HTTPException(404)
        headers = {"Cache-Control": "private, max-age=600", "ETag": f'"{sha256(data).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type="image/webp" if moving else "image/jpeg", headers=headers)

    @app.get("/style.css", include_in_schema=False)
    async def stylesheet() -> Response:
        return Response(style, media_type="text/css")

    return shown


def failure(request: Request, status: int, error: str, **headers: str) -> Response:
    """Return why there is no answer: as a page for browsers, else as JSON."""
    if "text/html" in request.headers.get("accept", ""):
        html = f"<!doctype html><meta charset=utf-8><title>{status}</title><p role=alert>{escape(error)}</p>"
        return HTMLResponse(html, status_code=status, headers=headers)
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def _fields(request: Request) -> dict[str, str]:
    """Return the parameters of an address, the last one of a name."""
    if len(request.query_params.multi_items()) > FIELDS:
        raise InputError("an address with too many parameters")
    return dict(request.query_params)
