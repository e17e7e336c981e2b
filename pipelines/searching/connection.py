"""A connection that ends by itself: whoever is slow to ask, or to take the answer, is not waited for."""

from __future__ import annotations

from asyncio import TimerHandle, Transport

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ASK = 10.0  # seconds to bring a request, and to take the answer before it
ANSWER = 120.0  # seconds to be answered
CONNECTIONS = 512  # at once; more are ended unheard


class Connection(H11Protocol):
    """HTTP/1.1 with a limit to each of a connection's waits, which bytes that trickle in do not lengthen."""

    _limit: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        """Begin, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._within(ASK)

    def handle_events(self) -> None:
        """Take in what came; once a request is whole its answer is waited for."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._within(ANSWER)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._within(ASK)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._limit:
            self._limit.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, with the headers of every response."""
        if self.cycle:
            self.cycle.disconnected = (
                True  # an answer that is being made to what came before is not sent after this one
            )
        headers = [*self.server_state.default_headers, (b"connection", b"close")]
        self.transport.write(self.conn.send(h11.Response(status_code=400, headers=headers)) or b"")
        self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()

    def _within(self, seconds: float) -> None:
        if self._limit:
            self._limit.cancel()
        self._limit = self.loop.call_later(seconds, self.transport.abort)
