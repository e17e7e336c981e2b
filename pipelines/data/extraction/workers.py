"""Workers of Ray that describe batches into rows, in order.

Batches are requested as there is room for them, and rows are read as they come: a corpus of any size is neither listed
nor held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import AwayError
from polypool.infra.spec import trusted

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

Batch = dict[str, list[str]]
"""The `ids` of some images, videos or texts, with their `paths` and `digests`, which may be empty, or the `texts`."""
Row = dict[str, Any]
"""The features of an image, video or text.

`id`; `path`, or the text; `why` there are no features, or nothing; `x_NW`, float32, its vectors with their columns
beside them; of a video the number of its `frames`, and its length where that is `odd`.
"""
_AHEAD = 2  # portions that a worker has, so that it never waits for the next
_UNREAD = 8  # portions a worker that may wait to be read, for one before them that takes long
_TRIES = 3
_ENDING = 2.0  # seconds for the tasks of workers that were ended


def stream(
    batches: Iterable[Batch], *, extractor: Callable[..., Any], options: dict[str, Any], gpu: bool, block: int
) -> Generator[Row, None, None]:
    """Yield an extractor's rows for all batches, in their order, from as many workers as the cluster has room for.

    A worker that dies is started again, and its portion is done again.

    Args:
        batches: what the extractor is called with.
        extractor: class of the extractor.
        options: what its constructor gets beside `threads` and `trusting`.
        gpu: give each worker a GPU if there is one.
        block: batches that travel together, at most.

    Raises:
        AwayError: workers died of the same batches again and again.
    """
    import ray

    has = ray.cluster_resources()
    cpus, gpus = int(has.get("CPU", 1)), int(has.get("GPU", 0)) if gpu else 0
    threads = max(1, cpus // gpus) if gpus else 1
    batches = iter(batches)
    first = [*islice(batches, gpus or cpus)]
    options = options | {"threads": threads, "trusting": trusted()}
    kind = ray.remote(
        num_cpus=threads, num_gpus=1 if gpus else 0, max_restarts=-1, max_task_retries=_TRIES - 1
    )(_Worker)
    workers = [kind.remote(extractor, options) for _ in first]
    yield from _in_order(workers, portions(chain(first, batches), most=block, workers=len(workers)))


def portions(batches: Iterable[Batch], *, most: int, workers: int) -> Iterator[list[Batch]]:
    """Yield batches that travel together: fewer towards the end, so that all end at once.

    A free worker gets the next, so that one with long videos gets fewer of them.

    Source: Polychronopoulos and Kuck, "Guided self-scheduling", IEEE Transactions on Computers 36, 1987.

    At most 2 * `workers` * `most` batches are taken ahead.
    """
    batches, near = iter(batches), deque[Batch]()
    while True:
        near.extend(islice(batches, 2 * workers * most - len(near)))
        if not near:
            return
        yield [near.popleft() for _ in range(max(1, min(most, len(near) // (2 * workers))))]


def _in_order(workers: list[Any], parts: Iterator[list[Batch]]) -> Iterator[Row]:
    """Yield the rows of all portions in their order, each described by the first free worker; then end the workers."""
    import ray

    free = deque(workers * _AHEAD)  # a worker once for every further portion that it may have
    at_work: dict[ObjectRef, ActorHandle] = {}
    unread: deque[tuple[ObjectRef, list[Batch]]] = deque()
    try:
        while True:
            while free and len(unread) < _UNREAD * len(workers) and (part := next(parts, None)):
                worker = free.popleft()
                task = worker.describe.remote(part)
                at_work[task] = worker
                unread.append((task, part))
            if not unread:
                return
            for task in ray.wait([*at_work])[0] if at_work else ():
                free.append(at_work.pop(task))
            while unread and unread[0][0] not in at_work:
                yield from _rows(*unread.popleft())
    finally:
        if ray.is_initialized():
            _end(workers, [task for task, _ in unread])


def _end(workers: list[ActorHandle], tasks: list[ObjectRef]) -> None:
    """End the workers, and fetch the results of their tasks: Ray prints errors that were not fetched."""
    import ray

    for worker in workers:
        ray.kill(worker)
    for task in ray.wait(tasks, num_returns=len(tasks), timeout=_ENDING)[0] if tasks else ():
        with suppress(Exception):
            ray.get(task)


def _rows(task: ObjectRef, part: list[Batch]) -> list[Row]:
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    try:
        return ray.get(task)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error
    except RayActorError as error:
        ids = [id for batch in part for id in batch["ids"]]
        last = f" to {ids[-1]}" if ids[1:] else ""
        raise AwayError(
            f"{_TRIES} times a worker died while it described {ids[0]}{last}, most likely as memory ran out; a smaller "
            f"--batch takes less. Ray says: {error}"
        ) from error


class _Worker:
    """An extractor in a process of Ray's; it is made with the first portion, so that its errors reach the driver."""

    def __init__(self, extractor: Callable[..., Any], options: dict[str, Any]) -> None:
        self._make, self._extractor = lambda: extractor(**options), None

    def describe(self, part: list[Batch]) -> list[Row]:
        """Return the rows of some batches."""
        self._extractor = self._extractor or self._make()
        parts = [joined(part)] if self._extractor.one_by_one else part
        return [row for batch in parts for row in self._extractor(batch)]


def joined(batches: Iterable[Batch]) -> Batch:
    """Return several batches as one."""
    first, *others = batches
    return {name: [*values, *(x for other in others for x in other[name])] for name, values in first.items()}
