"""Checks before any request is read: its token, host name, origin and size."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from html import escape

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polypool.pipelines.serving.settings import Settings, digest

_MIB = 1 << 20
_HERE = ("127.0.0.1", "localhost", "[::1]")
_ELSEWHERE = ("cross-site", "same-site")
"""`Sec-Fetch-Site` of a form on another page."""
OPEN = "/health"
"""What is answered without a token, for monitoring."""
_UNREAD_MIB, _UNREAD_SECONDS = 64, 5.0  # of a body, read after an answer that did not need it
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


class Guard:
    """Passes on the requests that may be answered; a refusal keeps nothing of the body.

    Host names are checked where only this machine may ask: a page of another site whose name resolves to this machine
    has another one.

    Args:
        app: answers.
        settings: limits, token, and whether only this machine may ask.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._held = 0  # bytes of the requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            else:
                await self.app(scope, receive, send)
            return

        headers = Headers(scope=scope)
        size = _size(headers)
        exchange = _Exchange(receive, send, body=size != 0)
        if (refusal := self._refusal(scope, headers, size)) is not None:
            refusal.headers["Connection"] = "close"  # the body may be endless
            await refusal(scope, exchange.receive, exchange.send)
            return
        self._held += size
        try:
            await self.app(scope, exchange.receive, exchange.send)
        finally:
            self._held -= size

    def _refusal(self, scope: Scope, headers: Headers, size: int) -> Response | None:
        limits, token = self.settings.limits, self.settings.token
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self.settings.local and not token and _host(headers) not in _HERE:
            return failure(headers, 403, f"this service answers to {', '.join(_HERE)} alone")
        if token and path != OPEN and not self._has_token(headers):
            text = "send the token of this service: Authorization: Bearer TOKEN"
            return failure(headers, 401, text, **{"WWW-Authenticate": "Bearer"})
        if scope["method"] == "POST" and headers.get("sec-fetch-site") in _ELSEWHERE:
            return failure(headers, 403, "a page of another site may not send anything here")
        if size < 0:
            return failure(headers, 411, "say by Content-Length how much the request brings")
        most = limits.max_body_mib if scope["method"] == "POST" else 0.0
        if size > most * _MIB:
            return failure(headers, 413, f"a request of {size:,} bytes; at most {most:g} MiB are taken")
        if self._held + size > limits.max_bodies_mib * _MIB:
            return busy(headers, "too much is sent at once; try again in a moment")
        return None

    def _has_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(digest(token.strip()), self.settings.token)


class _Exchange:
    """One request and its response, with `HEADERS`.

    A response ends once the body has been read, also where nothing needed it: the connection would be reset under a
    client that is still sending, which then loses the response.
    """

    def __init__(self, receive: Receive, send: Send, *, body: bool) -> None:
        self._receive, self._send, self._more = receive, send, body

    async def receive(self) -> Message:
        message = await self._receive()
        self._more = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        elif self._more and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._read_on()
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _read_on(self) -> None:
        unread = _UNREAD_MIB * _MIB
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNREAD_SECONDS):
                while self._more and unread > 0:
                    unread -= len((await self.receive()).get("body", b""))


def _host(headers: Headers) -> str:
    """Return the host name of a request, without a port."""
    name, colon, port = headers.get("host", "").rpartition(":")
    return name if colon and port.isdigit() else headers.get("host", "")


def _size(headers: Headers) -> int:
    """Return the bytes of a request's body; -1 where they are unknown."""
    length = headers.get("content-length", "0")
    known = length.isascii() and length.isdigit() and "transfer-encoding" not in headers
    return int(length) if known and len(length) < 19 else -1


def failure(request: Headers, status: int, error: str, **headers: str) -> Response:
    """Return why there is no answer: as a page for browsers, else as JSON."""
    if "text/html" in request.get("accept", ""):
        html = f"<!doctype html><meta charset=utf-8><title>{status}</title><p role=alert>{escape(error)}</p>"
        return HTMLResponse(html, status_code=status, headers=headers)
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def busy(request: Headers, error: str) -> Response:
    """Return the response to what may be requested again in a moment."""
    return failure(request, 503, error, **{"Retry-After": "1"})
