"""Queries that wait for the model go through it together, and no more than so many wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from anyio import to_thread

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class BusyError(Exception):
    """As many wait as may; ask again later."""


class Together(Generic[Asked, Answered]):
    """Lets one thread answer: what comes while it is at work waits, and is answered together.

    Args:
        answer: returns an answer to each of some questions, in their order; called in a thread, never twice at once.
        at_once: how many it is asked together at most.
        waiting: how many may wait.
    """

    def __init__(
        self, answer: Callable[[Sequence[Asked]], Sequence[Answered]], *, at_once: int, waiting: int
    ) -> None:
        self.answer, self.at_once, self.waiting = answer, at_once, waiting
        self._queue: deque[tuple[Asked, asyncio.Future[Answered]]] = deque()
        self._work: asyncio.Task[None] | None = None

    async def __call__(self, asked: Asked) -> Answered:
        """Return the answer to one question.

        Raises:
            BusyError: too many wait.
        """
        if len(self._queue) >= self.waiting:
            raise BusyError
        answered: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._queue.append((asked, answered))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())
        return await answered

    async def _answer_all(self) -> None:
        while self._queue:
            await self._answer([self._queue.popleft() for _ in range(min(self.at_once, len(self._queue)))])

    async def _answer(self, batch: list[tuple[Asked, asyncio.Future[Answered]]]) -> None:
        """Answer some; where that fails, each alone, so that a failure is one question's."""
        batch = [
            (asked, answered) for asked, answered in batch if not answered.done()
        ]  # the others have left
        if not batch:
            return
        try:
            answers = await to_thread.run_sync(self.answer, [asked for asked, _ in batch])
        except Exception as error:
            if len(batch) > 1:
                for one in batch:
                    await self._answer([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for (_, answered), answer in zip(batch, answers, strict=True):
            if not answered.done():
                answered.set_result(answer)
