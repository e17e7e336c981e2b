"""The model behind the application: in this process, or in the replicas of Ray Serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from anyio import to_thread

from polypool.pipelines.serving.page import PageBuilder, PageContent, PageRequest
from polypool.pipelines.serving.schema import ModelRequest
from polypool.pipelines.serving.service import RequestQueue, Service


class Model(Protocol):
    """What the application asks of a model; each raises an `AwayError` where it cannot answer now."""

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[dict[str, Any] | Exception]:
        """Return the columns of each row, or why there are none."""

    async def check(self) -> None:
        """Answer an example; raise where that fails."""

    async def page(self, request: PageRequest) -> PageContent:
        """Return what the page shows."""

    async def picture(self, id: str, *, moving: bool) -> bytes | None:
        """Return a small picture of an item, or None."""


class LocalModel:
    """A `Model` in this process.

    Args:
        service: the model, loaded.
        waiting: requests that may be in progress.
    """

    def __init__(self, service: Service, *, waiting: int) -> None:
        self.service, self._queue = service, RequestQueue(service, waiting=waiting)
        self.pages = PageBuilder(service, self._queue)

    async def answer(self, rows: Sequence[ModelRequest]) -> Sequence[dict[str, Any] | Exception]:
        return await self._queue(rows)

    async def check(self) -> None:
        await to_thread.run_sync(self.service.check)

    async def page(self, request: PageRequest) -> PageContent:
        return await self.pages.content(request)

    async def picture(self, id: str, *, moving: bool) -> bytes | None:
        return await self.pages.pictures.picture(id, moving=moving)

    def close(self) -> None:
        """End the processes that decode."""
        self.service.reader.close()
        self.pages.close()
