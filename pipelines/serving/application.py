"""The service over HTTP: what is asked where, and how it is answered or refused. It knows no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from infra.errors import AwayError, InputError
from pipelines.serving.asked import Asked, read_rows
from pipelines.serving.guard import Guard, busy, refused
from pipelines.serving.schema import (
    Answers,
    Described,
    Embeddings,
    Failure,
    Found,
    Health,
    Route,
    Rows,
    Scores,
    SearchRows,
)
from pipelines.serving.settings import Settings

_REFUSALS = {
    "4XX": "400: a row or the body cannot be used, and the message names the row, from 0; 401: no token, or "
    "another one; 411: no Content-Length; 413: too large",
    "503": "too many ask, or the model is away; ask again after `Retry-After` seconds",
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model, wherever it is.

    Attributes:
        answer: returns the columns of each row, or why there are none. It raises an `AwayError` where it cannot be
            asked now.
        check: answers an example; it raises likewise.
    """

    answer: Callable[[Sequence[Asked]], Awaitable[Sequence[dict[str, Any] | Exception]]]
    check: Callable[[], Awaitable[None]]


def application(described: Described, settings: Settings, model: Model) -> ASGIApp:
    """Return the service as an ASGI application.

    Args:
        described: what is served.
        settings: whom it answers, and how much.
        model: answers.
    """
    app = FastAPI(
        title=f"polypool: {described.recipe or described.task}",
        description=f"{described.aggregator} on {described.task}, of {described.source}",
        docs_url=None,  # pages that fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    door = _Door(described, settings, model)
    app.add_api_route("/", door.describe, methods=["GET"], response_model=Described)
    app.add_api_route("/health", door.health, methods=["GET"], response_model=Health)
    endpoints: dict[Route, tuple[Callable[..., Any], type]] = {
        "embed": (door.embed, Embeddings),
        "score": (door.score, Scores),
        "answer": (door.answer, Answers),
        "search": (door.search, Found),
    }
    refusals = {status: {"model": Failure, "description": text} for status, text in _REFUSALS.items()}
    for route in described.routes:
        endpoint, answers = endpoints[route]
        app.add_api_route(f"/{route}", endpoint, methods=["POST"], response_model=answers, responses=refusals)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(Exception, _broken)
    return Guard(app, settings.limits, token=settings.token, local=settings.local)


class _Door:
    """What stands at each address."""

    def __init__(self, described: Described, settings: Settings, model: Model) -> None:
        self.described, self.settings, self.model = described, settings, model

    async def describe(self) -> Described:
        """What is served, and its limits."""
        return self.described

    async def health(self) -> Response:
        """Whether the model answers: an example goes through it."""
        return await self._in_time(self._healthy())

    async def _healthy(self) -> Response:
        try:
            await self.model.check()
        except (AwayError, TimeoutError):
            raise
        except Exception as error:
            raise AwayError("the model does not answer; the log of its replica says why") from error
        return JSONResponse(Health().model_dump())

    async def embed(self, asked: Rows) -> Response:
        """The embedding of each row, which has one of `features`, `image` and `text`."""
        return await self._answered("embed", asked)

    async def score(self, asked: Rows) -> Response:
        """How alike `features` or `image` and `text` of each row are."""
        return await self._answered("score", asked)

    async def answer(self, asked: Rows) -> Response:
        """The most probable answer to the question `text` about `features` or `image` of each row."""
        return await self._answered("answer", asked)

    async def search(self, asked: SearchRows) -> Response:
        """The items that are most like each row's `text`; the captions most like its `features` or `image`."""
        return await self._answered("search", asked, k=asked.k)

    async def _answered(self, route: Route, asked: Rows, k: int = 0) -> Response:
        try:
            rows = read_rows(route, asked.rows, self.described, self.settings.limits, k=k)
        except InputError as error:
            return refused(400, str(error))
        return await self._in_time(self._asked(rows))

    async def _asked(self, rows: list[Asked]) -> Response:
        answers = await self.model.answer(rows)
        for number, answer in enumerate(answers):
            if not isinstance(answer, dict):
                return refused(400 if isinstance(answer, InputError) else 500, f"row {number}: {answer}")
        return JSONResponse({"rows": [_plain(answer) for answer in answers]})

    async def _in_time(self, response: Awaitable[Response]) -> Response:
        try:
            async with asyncio.timeout(self.settings.limits.patience):
                return await response
        except AwayError as error:
            return busy(str(error))
        except TimeoutError:
            return busy(f"no answer in {self.settings.limits.patience:g} seconds; try again in a moment")


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: cell.tolist() if isinstance(cell, np.ndarray) else cell for name, cell in answer.items()}


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """Say what does not fit, of many things the first."""
    first = error.errors()[0]
    where = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return refused(400, f"the body is no JSON: {first.get('ctx', {}).get('error', '')}")
    kind = request.headers.get("content-type", "")
    if not where and kind.partition(";")[0].strip().lower() != "application/json":
        return refused(400, 'send JSON, {"rows": [...]}, with the header Content-Type: application/json')
    at = ""
    if where[:1] == ["rows"] and len(where) > 1:
        at, where = f"row {where[1]}: ", where[2:]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
    return refused(400, f"{at}{name + ': ' if name else ''}{first['msg']}")


async def _failed(request: Request, error: HTTPException) -> Response:
    texts = {
        404: "there is nothing at this address; GET / says what there is",
        400: "the body cannot be read as JSON",
        405: "this address takes another method; GET /openapi.json says which",
    }
    return refused(
        error.status_code, texts.get(error.status_code, str(error.detail)), **dict(error.headers or {})
    )


async def _broken(request: Request, error: Exception) -> Response:
    return refused(500, "the service failed at this request; its log says why")
