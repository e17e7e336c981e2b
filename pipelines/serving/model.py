"""The model behind the application: in this process, or in the replicas of Ray Serve."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from anyio import to_thread

from polypool.infra.errors import AwayError, FaultError
from polypool.pipelines.serving.page import PageBuilder, PageContent, PageRequest
from polypool.pipelines.serving.schema import ModelRequest
from polypool.pipelines.serving.service import Answered, Service


class Model(Protocol):
    """What the application asks of a model; each raises an `AwayError` where it cannot answer now."""

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[Answered]:
        """Return the columns of each row, or why there are none."""

    async def check(self) -> None:
        """Answer an example; raise where that fails."""

    async def page(self, request: PageRequest) -> PageContent:
        """Return what the page shows."""

    async def picture(self, id: str, moving: bool) -> bytes | None:
        """Return a small picture of an item, or None."""


class LocalModel:
    """A `Model` in this process: rows wait for it, and up to `max_batch` of them are answered together, in one thread.

    Args:
        service: the model, loaded.
        waiting: requests that may be in progress.
    """

    def __init__(self, service: Service, *, waiting: int) -> None:
        self.service, self.waiting = service, waiting
        self.pages = PageBuilder(service, self.answer)
        self._rows: deque[tuple[ModelRequest, asyncio.Future[Answered]]] = deque()
        self._requests = 0
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[Answered]:
        if self._requests >= self.waiting:
            raise AwayError("too many ask at once; try again in a moment")
        futures = [asyncio.get_running_loop().create_future() for _ in rows]
        self._rows.extend(zip(rows, futures, strict=True))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        self._requests += 1
        try:
            return await asyncio.gather(*futures)
        finally:
            self._requests -= 1

    async def _work(self) -> None:
        most = self.service.settings.limits.max_batch
        while self._rows:
            batch = [self._rows.popleft() for _ in range(min(most, len(self._rows)))]
            batch = [(row, future) for row, future in batch if not future.done()]  # clients that left
            if not batch:
                continue
            try:
                answers = await to_thread.run_sync(self.service.answer, [row for row, _ in batch])
            except Exception as error:
                answers = [FaultError(str(error))] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def check(self) -> None:
        await to_thread.run_sync(self.service.check)

    async def page(self, request: PageRequest) -> PageContent:
        return await self.pages.content(request)

    async def picture(self, id: str, moving: bool) -> bytes | None:
        return await self.pages.pictures.picture(id, moving=moving)

    def close(self) -> None:
        """End the processes that decode."""
        self.service.reader.close()
        self.pages.close()
