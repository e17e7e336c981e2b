"""The FastAPI application: the page and the HTTP API of a model."""

from __future__ import annotations

import hmac
import io
from collections.abc import Awaitable, Callable
from functools import cached_property, lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Form, HTTPException, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response

from polypool.infra.errors import AwayError, FaultError, InputError
from polypool.pipelines.figures.pages import Thumbnails, data_address, templates
from polypool.pipelines.models.search import AnswerSearch, as_file
from polypool.pipelines.models.table_rows import plain
from polypool.pipelines.serving.schema import (
    Answer,
    Embedding,
    Failure,
    Hits,
    ModelInfo,
    Results,
    Route,
    Rows,
    Score,
    SearchRows,
)
from polypool.pipelines.serving.service import SENT, ModelRequest, RowQueue, Service, check_text, read_row
from polypool.tasks.datasets.corpus import media_file

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
"""Default headers of responses."""
PER_PAGE = 24  # images to choose from, per page
FRAMES, PAUSE = 8, 400  # frames of a video, and milliseconds per frame
CACHE_SIZE = 1024  # pictures in memory, about 10 kB each
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
        "The items nearest to each row's `text`; the captions nearest to its `features` or `image`.",
    ),
}
"""Result type and description of each endpoint, for OpenAPI."""
_REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": Failure,
        "description": "400: invalid body or row; the message names the row, counted from 0; 401: missing or wrong "
        "token; 411: no Content-Length; 413: too large",
    },
    "503": {
        "model": Failure,
        "description": "too many requests, or a timeout; retry after `Retry-After` seconds",
    },
}


def application(service: Service) -> FastAPI:
    """Return the page and the API of a service."""
    described, settings, limits = service.described, service.settings, service.settings.limits
    queue, bearer = RowQueue(service), HTTPBearer(auto_error=False)
    app = FastAPI(
        title=f"polypool: {described.title}",
        description=f"{described.aggregator} on {described.task}, of {described.source}",
        docs_url=None,  # pages that load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
    )

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Check token and size before the body is read; add default headers."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        size = request.headers.get("content-length", "")
        most = limits.max_body_mib * (1 << 20) if request.method == "POST" else 0
        known = not settings.token or path == "/health"  # for monitoring
        if not known and (sent := await bearer(request)):
            known = hmac.compare_digest(sha256(sent.credentials.encode()).hexdigest(), settings.token)
        if not known:
            text = "send the token of this service: Authorization: Bearer TOKEN"
            response = failure(request, 401, text, **{"WWW-Authenticate": "Bearer"})
        elif request.method == "POST" and not size.isdigit():
            response = failure(request, 411, "send the Content-Length of the request")
        elif int(size or 0) > most:
            response = failure(request, 413, f"a request of {size} bytes; the limit is {most:,.0f}")
        else:
            response = await answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    if settings.local and not settings.token:  # against DNS rebinding by pages of other sites
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])

    @app.get("/health")
    async def health(request: Request) -> dict[str, str]:
        """Health check: the model answers an example."""
        try:
            await to_thread.run_sync(service.check)
        except Exception as error:
            raise AwayError("the model does not answer; see the log of the service") from error
        return {"status": "ok"}

    def add_rows(route: Route) -> None:
        async def rows(request: Request, body: Any) -> Response:
            k = getattr(body, "k", 1)
            if len(body.rows) > limits.max_rows:
                raise InputError(f"{len(body.rows):,} rows; the limit is {limits.max_rows:,} per request")
            if k > limits.max_k:
                raise InputError(f"k is {k:,}; the limit is {limits.max_k:,}")
            requests, found = [], []
            for number, row in enumerate(body.rows):
                try:
                    requests.append(read_row(route, row, described, limits, k=k))
                except InputError as error:
                    raise InputError(f"row {number}: {error}") from error
            for number, answer in enumerate(await queue.answer(requests)):
                if isinstance(answer, Exception):
                    raise type(answer)(f"row {number}: {answer}")
                found.append(plain(answer.get("answers", [answer])[0]))  # the most probable answer
            return JSONResponse({"rows": found})

        rows.__annotations__["body"] = SearchRows if route == "search" else Rows
        answer, about = _ANSWERS[route]
        options: dict[str, Any] = {"response_model": answer, "responses": _REFUSALS}
        app.add_api_route(f"/{route}", rows, methods=["POST"], name=route, description=about, **options)

    for route in described.routes:
        add_rows(route)
    page = Page(service, queue) if described.page else None

    @app.get("/", response_model=ModelInfo)
    async def index(
        request: Request,
        q: str | None = None,
        id: str = "",
        k: int = Query(0, ge=0, le=limits.max_k),
        page_number: int = Query(0, ge=0, alias="page"),
    ) -> Response:
        """The model and its limits; the page for browsers."""
        if page and "text/html" in request.headers.get("accept", ""):
            return await page.answer(request, q, id=id, k=k, page=page_number)
        return JSONResponse(described.model_dump())

    if page:
        _add_page(app, page)

    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, AwayError):
            return failure(request, 503, str(error), **{"Retry-After": "1"})
        if isinstance(error, AnyHTTPException):
            return failure(request, error.status_code, str(error.detail), **dict(error.headers or {}))
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            return failure(request, 400, f"{where}: {first['msg']}" if where else first["msg"])
        if isinstance(error, InputError):
            return failure(request, 400, str(error))
        text = "the service failed at this request; see its log"
        return failure(request, 500, str(error) if isinstance(error, FaultError) else text)

    for kind in (AnyHTTPException, RequestValidationError, InputError, FaultError, Exception):
        app.add_exception_handler(kind, refuse)
    return app


def failure(request: Request, status: int, error: str, **headers: str) -> Response:
    """Return an error: as a page for browsers, else as JSON."""
    if "text/html" in request.headers.get("accept", ""):
        html = f"<!doctype html><meta charset=utf-8><title>{status}</title><p role=alert>{escape(error)}</p>"
        return HTMLResponse(html, status_code=status, headers=headers)
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def _add_page(app: FastAPI, page: Page) -> None:
    """Add the endpoints of the page, except `/`."""
    style = (files(_PACKAGE) / "templates/style.css").read_bytes()

    @app.post("/", include_in_schema=False)
    async def upload(request: Request, file: UploadFile, q: str | None = Form(None)) -> Response:
        if not (data := await file.read()):
            raise InputError("choose a file first")
        return await page.answer(request, q, upload=data)

    @app.get("/picture", include_in_schema=False)
    @app.get("/clip", include_in_schema=False)
    async def picture(request: Request, id: str = "") -> Response:
        moving = request.url.path.endswith("/clip")
        data = await to_thread.run_sync(page.picture, id, moving)
        if not data:
            raise HTTPException(404)
        kind = "image/webp" if moving else "image/jpeg"
        return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=600"})

    @app.get("/style.css", include_in_schema=False)
    async def stylesheet() -> Response:
        return Response(style, media_type="text/css")


class Page:
    """The search page, and thumbnails of the corpus's files.

    Args:
        service: service of a model with a search or answers.
        queue: its queue of rows.
    """

    def __init__(self, service: Service, queue: RowQueue) -> None:
        self.service, self.queue = service, queue
        self.search: Any = service.search  # not None
        self.questions = isinstance(service.search, AnswerSearch)
        self.kind = "video" if service.video else "image"
        self.thumbnails = Thumbnails(video=service.video)
        self.template = templates(_PACKAGE).get_template("page.html.j2")
        self.picture = lru_cache(CACHE_SIZE)(self._picture)

    async def answer(
        self,
        request: Request,
        text: str | None,
        *,
        id: str = "",
        k: int = 0,
        page: int = 0,
        upload: bytes = b"",
    ) -> Response:
        """Return a page with results, an alert, or images to choose from.

        Args:
            request: the request, for the root path of links.
            text: the typed text.
            id: id of the chosen item.
            k: number of results; 0 for the default.
            page: page number of the images to choose from.
            upload: content of an uploaded file; empty for none.
        """
        limits, upload_kind = self.service.settings.limits, "video/*" if self.service.video else "image/*"
        values: dict[str, Any] = {"text": text or "", "questions": self.questions, "alert": "", "note": ""}
        values |= {"subject": None, "results": [], "choice": None}
        values["upload"] = upload_kind if self.service.settings.images else ""
        try:
            if upload:
                values["subject"] = await to_thread.run_sync(self._uploaded, upload)
            elif id:
                values["subject"] = self._subject(id)
            if not values["subject"] and (self.questions or text is None):
                values |= self._choice(page)
                if text is not None:
                    raise InputError(f"choose the {self.kind} first; then ask")
            elif text is not None or upload or not self.questions:
                values |= await self._results(text or "", id=id, k=k, upload=upload)
        except AwayError:
            raise
        except InputError as error:
            values["alert"] = str(error)
        root, title = request.scope.get("root_path", ""), self.service.described.title
        html = self.template.render(title=title, root=root, longest=limits.max_characters, **values)
        return HTMLResponse(html, status_code=400 if values["alert"] else 200)

    async def _results(self, text: str, *, id: str, k: int, upload: bytes) -> dict[str, Any]:
        limits, by_text = self.service.settings.limits, self.questions or not (upload or id)
        if by_text:
            check_text(text, limits)
        row = ModelRequest(
            route="answer" if self.questions else "search",
            text=text if by_text else None,
            image=upload or None,
            id=id,
            k=k or min(limits.max_k, 5 if self.questions else 10),
        )
        (found,) = await self.queue.answer([row])
        if isinstance(found, Exception):
            raise found
        if self.questions:
            return {"results": found["answers"]}
        if not by_text:
            return {"results": found["hits"], "note": f"captions nearest to {id or SENT}"}
        hits = [hit | {"picture": self._subject(hit["id"])} for hit in found["hits"]]
        lost = "the corpus has no image or video files here: only scores and captions are shown"
        return {"results": hits, "note": "" if any(hit["picture"]["there"] for hit in hits) else lost}

    def _choice(self, page: int) -> dict[str, Any]:
        """Return a page of images to choose from and a note; no images if the corpus is missing."""
        note = f"choose the {self.kind} to ask about, or upload one"
        try:
            items = self.search.items
        except InputError:  # question answering needs no corpus
            return {"note": note}
        if not self.questions:
            what = f"{len(items):,} {self.kind}s of the split {self.search.split}"
            note = f"search {what}, or choose one to see its nearest captions"
        pages = -(-len(items) // PER_PAGE)
        page = min(page, pages - 1)
        images = [self._subject(item.id) for item in items[page * PER_PAGE : (page + 1) * PER_PAGE]]
        return {"note": note, "choice": {"images": images, "page": page, "pages": pages}}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {item.id: number for number, item in enumerate(self.search.items)}

    def _file(self, id: str) -> Any:
        """Return the file of an item if it is inside the corpus."""
        return media_file(self.search.corpus, self.search.items[self._numbers[id]])

    def _subject(self, id: str) -> dict[str, Any]:
        if id not in self._numbers:
            raise HTTPException(404, f"no {self.kind} of this split has the id {id[:80]!r}")
        return {"id": id, "there": self._file(id) is not None, "video": self.service.video, "data": ""}

    def _uploaded(self, data: bytes) -> dict[str, Any]:
        with as_file(data, what=SENT) as path:
            images = self.thumbnails.images(path, at_most=1)
        address = data_address(images[0], quality=85) if images else ""
        return {"id": SENT, "there": True, "video": False, "data": address}

    def _picture(self, id: str, moving: bool) -> bytes | None:
        """Return a JPEG of an image or of a video's middle frame, or an animated WebP; None if it does not decode."""
        if id not in self._numbers or (moving and not self.service.video):
            return None
        images = self.thumbnails.images(self._file(id), at_most=FRAMES if moving else 1)
        if not images:
            return None
        data = io.BytesIO()
        if moving:
            options = {"append_images": images[1:], "duration": PAUSE, "loop": 0, "quality": 75}
            images[0].save(data, "WEBP", save_all=True, **options)
        else:
            images[0].save(data, "JPEG", quality=85)
        return data.getvalue()
