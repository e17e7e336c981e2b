"""The application served by uvicorn from this process, with limits for slow clients."""

from __future__ import annotations

import signal
import socket
import time
from asyncio import TimerHandle, Transport
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from polypool.infra.process.stopping import exit_now
from polypool.pipelines.serving.application import application
from polypool.pipelines.serving.model import LocalModel
from polypool.pipelines.serving.service import Service

ASK = 10.0  # seconds to bring the head of a request, and to take the answer before it
ANSWER = 120.0  # seconds to bring its body, and to be answered
CONNECTIONS = 512  # at once; requests of more get 503
WATCH = 2  # seconds between two looks at what the application depends on
ENDING = 4.5  # seconds after Ctrl-C at which the process ends, even if the model is computing


class Connection(H11Protocol):
    """HTTP/1.1 with a limit to each wait of a connection, which bytes that trickle in do not extend.

    Where there are too many, the one that has been bringing its request for longest is ended, of the address that has
    most of these: slow clients keep out no others.
    """

    _limit: TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        others = [each for each in self.connections if isinstance(each, Connection) and each.asking]
        if len(self.connections) >= CONNECTIONS and others:
            of = Counter(each.address for each in others)
            slowest = max(others, key=lambda each: (of[each.address], -each._since))
            slowest.transport.abort()
            self.connections.discard(slowest)  # which the loop may tell it only after this one's request
        self._wait()

    @property
    def address(self) -> str:
        """The client's, without its port."""
        return self.client[0] if self.client else ""

    @property
    def asking(self) -> bool:
        """Whether a request is awaited, or its rest."""
        waits = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        return self._limit is not None and waits and not self.transport.is_closing()

    def handle_events(self) -> None:
        """Take in what came; a whole request is then to be answered in time."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._within(ANSWER)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit:
            self._limit.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; an answer in progress is not sent after this one."""
        if self.cycle:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def _wait(self) -> None:
        """Wait for a request."""
        self._since = time.monotonic()
        self._within(ASK)

    def _within(self, seconds: float) -> None:
        if self._limit:
            self._limit.cancel()
        self._limit = self.loop.call_later(seconds, self.transport.abort)


class Server(uvicorn.Server):
    """Serves an application at a socket until Ctrl-C.

    After the signal, requests in progress are finished, for a few seconds: the model's thread cannot be stopped.

    Args:
        app: the application.
        listening: a bound socket.
        watch: called every other second; the server ends with its error.
    """

    def __init__(
        self, app: ASGIApp, listening: socket.socket, *, watch: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.socket = listening
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                limit_concurrency=CONNECTIONS,
                callback_notify=watch,
                timeout_notify=WATCH,
                h11_max_incomplete_event_size=32 << 10,  # bytes of a request's head
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,  # requests hold what people look for
                server_header=False,
            )
        )

    def serve_forever(self) -> None:
        """Serve until a signal, or until `should_exit` is set."""
        try:
            self.run(sockets=[self.socket])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        signal.signal(signal.SIGALRM, lambda *_: exit_now(sig))
        signal.setitimer(signal.ITIMER_REAL, ENDING)


def serve_here(service: Service, listening: socket.socket) -> None:
    """Serve a loaded model from this process until Ctrl-C."""
    model = LocalModel(service, waiting=service.settings.limits.max_queued)
    try:
        Server(application(service.described, service.settings, model), listening).serve_forever()
    finally:
        model.close()
