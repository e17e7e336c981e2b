"""Workers of Ray that describe batches into rows, in order."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable
from itertools import chain, count, islice
from typing import Any

from polypool.infra.errors import AwayError
from polypool.infra.spec import trusted

Batch = dict[str, list[str]]
"""The `ids` of some images, videos or texts, with their `paths` and `digests`, which may be empty, or the `texts`."""
Row = dict[str, Any]
"""The features of an image, video or text.

`id`; `path`, or the text; `why` there are no features, or nothing; `x_NW`, float32, its vectors with their columns
beside them; of a video the number of its `frames`, and its length where that is `odd`.
"""
_AHEAD = 2  # batches that a worker has, so that it never waits for the next
_TRIES = 3


def stream(
    batches: Iterable[Batch], *, extractor: Callable[..., Any], options: dict[str, Any], gpu: bool
) -> Generator[Row, None, None]:
    """Yield an extractor's rows for all batches, in their order, from as many workers as the cluster has room for.

    A batch is requested when a worker is free, so that a corpus of any size is never listed. A worker that dies is
    restarted, and its batch is retried.

    Args:
        batches: what the extractor is called with.
        extractor: class of the extractor.
        options: what its constructor gets beside `threads` and `trusting`.
        gpu: give each worker a GPU if there is one.

    Raises:
        AwayError: workers died of the same batch again and again.
    """
    import ray
    from ray.exceptions import RayActorError
    from ray.util import ActorPool

    has = ray.cluster_resources()
    cpus, gpus = int(has.get("CPU", 1)), int(has.get("GPU", 0)) if gpu else 0
    threads = max(1, cpus // gpus) if gpus else 1
    coming = iter(batches)
    first = [*islice(coming, gpus or cpus)]
    kind = ray.remote(
        num_cpus=threads, num_gpus=1 if gpus else 0, max_restarts=-1, max_task_retries=_TRIES - 1
    )(_Worker)
    options = options | {"threads": threads, "trusting": trusted()}
    workers: list[Any] = [kind.remote(extractor, options) for _ in first]
    pool, tasks = ActorPool(workers * _AHEAD), enumerate(chain(first, coming))
    done: dict[int, list[Row] | Exception] = {}
    try:
        for wanted in count():
            while wanted not in done:
                while pool.has_free() and (task := next(tasks, None)):
                    pool.submit(lambda worker, task: worker.describe.remote(*task), task)
                if not pool.has_next():
                    return
                number, rows = pool.get_next_unordered()
                done[number] = rows
            rows = done.pop(wanted)
            if isinstance(rows, Exception):
                raise rows
            yield from rows
    except RayActorError as error:
        raise AwayError(
            f"a worker died {_TRIES} times on one batch, most likely as memory ran out; a smaller --batch takes less. "
            f"Ray says: {error}"
        ) from error
    finally:
        for worker in workers if ray.is_initialized() else ():
            ray.kill(worker)


class _Worker:
    """An extractor in a process of Ray's; it is made with the first batch, so that its errors reach the driver."""

    def __init__(self, extractor: Callable[..., Any], options: dict[str, Any]) -> None:
        self._make, self._extractor = lambda: extractor(**options), None

    def describe(self, number: int, batch: Batch) -> tuple[int, list[Row] | Exception]:
        """Return the number of a batch with its rows, or the error, which is raised when it is the batch's turn."""
        try:
            self._extractor = self._extractor or self._make()
            return number, self._extractor(batch)
        except Exception as error:
            error.add_note(traceback.format_exc())
            return number, error
