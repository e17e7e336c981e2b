"""Requests to an ASGI application in this process, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message


class Answer(NamedTuple):
    """A status, the headers by lower-case names, and what the JSON of the body holds."""

    status: int
    headers: dict[str, str]
    body: Any


async def asked(
    app: ASGIApp, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """Ask an application, as who is on its machine and sends JSON, but for other headers."""
    said = {"host": "127.0.0.1:8000", "content-type": "application/json", "content-length": str(len(body))}
    said |= headers or {}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(name.encode(), text.encode()) for name, text in said.items() if text],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 1),
    }
    sent: list[Message] = []
    coming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return coming.pop() if coming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:  # is for the log of a server, where an answer was sent
        if not sent:
            raise
    start, *parts = sent
    whole = b"".join(part.get("body", b"") for part in parts)
    headers_of = {name.decode().lower(): text.decode() for name, text in start["headers"]}
    return Answer(start["status"], headers_of, json.loads(whole, parse_constant=_refuse))


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def ask(app: ASGIApp, path: str, body: Any = None, **headers: str) -> Answer:
    """GET a path, or POST what is given as JSON, or as it is where it is bytes."""
    if body is None:
        return asyncio.run(asked(app, "GET", path, headers=_headers(headers)))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(asked(app, "POST", path, data, _headers(headers)))


def _headers(named: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in named.items()}
