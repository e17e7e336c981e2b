"""Who is answered: those who came by this machine's name, with no more than a file, from a page of this server."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.searching.uploads import FORM
from pipelines.searching.views import Page

HOST = "127.0.0.1"
_ELSEWHERE = ("cross-site", "same-site")
"""What a browser says of a form that is on another page; it says nothing of its own in `Origin`, by our policy."""


class Guard:
    """Hands on the requests that may be answered; a response is stored only if it says so.

    A page of elsewhere whose name was made to lead here has another one.

    Args:
        app: answers.
        refusals: pages for 403, who came by another name or from another page, and 413, who brings too much.
    """

    def __init__(self, app: ASGIApp, refusals: Mapping[int, Page]) -> None:
        self.app, self.refusals = app, refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        sends = scope.get("method") == "POST"
        stranger = headers.get("host", "").partition(":")[0] not in (HOST, "localhost")
        app = self.app
        if stranger or (sends and headers.get("sec-fetch-site") in _ELSEWHERE):
            app = self._refusal(403)
        elif _brought(headers) > (FORM if sends else 0):
            app = self._refusal(413)
        await app(scope, receive, send_guarded)

    def _refusal(self, status: int) -> HTMLResponse:
        response = html(self.refusals[status])
        response.headers["Connection"] = "close"  # what is still to come is not read
        return response


def _brought(headers: Headers) -> float:
    """Return how many bytes come with a request; infinity where that is not said."""
    length = headers.get("content-length", "0")
    known = length.isascii() and length.isdigit() and "transfer-encoding" not in headers
    return float(length) if known else math.inf


def html(page: Page) -> HTMLResponse:
    """Return a page as a response."""
    return HTMLResponse(page.html.encode("utf-8", "replace"), status_code=page.status)
