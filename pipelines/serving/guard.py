"""Who is answered: those who have the token, came by this machine's name, and say how much they bring."""

from __future__ import annotations

import hmac
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.serving.settings import Limits

_MIB = 1 << 20
_HERE = ("127.0.0.1", "localhost", "[::1]")
OPEN = "/health"
"""What is answered without a token: whoever watches the service needs none."""


def digest(token: str) -> str:
    """Return what is kept of a token: from it nobody finds the token again."""
    return sha256(token.encode()).hexdigest()


class Guard:
    """Hands on the requests that may be answered; a refusal reads nothing of what is brought.

    Args:
        app: answers.
        limits: of what is brought.
        token: `digest` of the token that is asked for; empty for none.
        local: whether it answers to the names of this machine alone: a page of elsewhere whose name was made to lead
            here has another one.
    """

    def __init__(self, app: ASGIApp, limits: Limits, *, token: str, local: bool) -> None:
        self.app, self.limits, self.token, self.local = app, limits, token, local
        self._held = 0  # bytes of the requests that are there

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            else:
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"cache-control", b"no-store"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        headers = Headers(scope=scope)
        brought = _brought(headers)
        if (refusal := self._refusal(scope, headers, brought)) is not None:
            await refusal(scope, receive, send_guarded)
            return
        self._held += brought
        try:
            await self.app(scope, receive, send_guarded)
        finally:
            self._held -= brought

    def _refusal(self, scope: Scope, headers: Headers, brought: int) -> JSONResponse | None:
        limits = self.limits
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self.local and not self.token and _name(headers) not in _HERE:
            return refused(403, f"this service answers to {', '.join(_HERE)} alone")
        if self.token and path != OPEN and not self._knows(headers):
            text = "send the token of this service: Authorization: Bearer TOKEN"
            return refused(401, text, **{"WWW-Authenticate": "Bearer"})
        if brought < 0:
            return refused(411, "say by Content-Length how much the request brings")
        if brought > limits.max_body_mib * _MIB:
            return refused(
                413, f"a request of {brought:,} bytes; at most {limits.max_body_mib:g} MiB are taken"
            )
        if self._held + brought > limits.max_bodies_mib * _MIB:
            return busy("too much is sent at once; try again in a moment")
        return None

    def _knows(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(digest(token.strip()), self.token)


def _name(headers: Headers) -> str:
    """Return the name by which whoever asks came here, without a port."""
    name, colon, port = headers.get("host", "").rpartition(":")
    return name if colon and port.isdigit() else headers.get("host", "")


def _brought(headers: Headers) -> int:
    """Return how many bytes come with a request; -1 where that is not said."""
    length = headers.get("content-length", "0")
    known = length.isascii() and length.isdigit() and "transfer-encoding" not in headers
    return int(length) if known and len(length) < 19 else -1


def refused(status: int, error: str, **headers: str) -> JSONResponse:
    """Return why there is no answer, as a response."""
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def busy(error: str) -> JSONResponse:
    """Return the response to what may be asked again in a moment."""
    return refused(503, error, **{"Retry-After": "1"})
