"""What is to be described, listed as it is needed: batches go to Ray as compact tables, and the driver keeps none.

A million images are a hundred megabytes of ids and paths, which lie in Ray's store of objects, on disk where it is
full; the driver holds a reference to each thousand batches, and a few thousand pairs of numbers that say which batches
travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from ray import ObjectRef

Batch = dict[str, list[str]]
"""The `ids` of some images, videos or texts, and where they are, by `paths`, or what they say, by `texts`."""
CHUNK = 1024  # batches of a table
_TASKS = 2048  # of which Ray keeps four kilobytes each


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Batches in Ray's store, read by its workers.

    Attributes:
        chunks: tables of `CHUNK` batches each, the last one of the rest.
        count: how many batches there are.
    """

    chunks: tuple[ObjectRef, ...]
    count: int

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Plan:
        """Send batches to Ray's store."""
        import ray

        chunks, count, batches = [], 0, iter(batches)
        while chunk := [*islice(batches, CHUNK)]:
            chunks.append(ray.put(pa.Table.from_pylist(chunk)))
            count += len(chunk)
        pa.default_memory_pool().release_unused()  # a dozen megabytes that Arrow would keep for more of this
        return cls(chunks=tuple(chunks), count=count)

    def batches(self, first: int, end: int) -> Iterator[Batch]:
        """Yield the batches from one number up to another, exclusive."""
        import ray

        while first < end:
            chunk, row = divmod(first, CHUNK)
            rows = ray.get(self.chunks[chunk]).slice(row, end - first)
            yield from rows.to_pylist()
            first += len(rows)

    def spans(self, *, most: int, workers: int) -> list[tuple[int, int]]:
        """Return which batches travel together, as first and end: fewer towards the end, so that all end at once.

        Whoever is free gets the next, so that a worker with long videos gets fewer of them.

        Source: Polychronopoulos and Kuck, "Guided self-scheduling", IEEE Transactions on Computers 36, 1987.

        Args:
            most: batches that travel together, unless that makes too many tasks.
            workers: who share them.
        """
        spans, first, most = [], 0, max(most, -(-self.count // _TASKS))
        while first < self.count:
            end = first + max(1, min(most, (self.count - first) // (2 * workers)))
            spans.append((first, end))
            first = end
        return spans


class Planned:
    """An extractor that is told which batches of a plan to describe; lives in a Ray actor.

    Args:
        extractor: class of the extractor.
        options: of its constructor.
        plan: the batches.
    """

    def __init__(self, *, extractor: Any, options: dict[str, Any], plan: Plan) -> None:
        self._extractor, self._plan = extractor(**options), plan

    def __call__(self, span: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the rows of the batches from `first` up to `end`."""
        batches = self._plan.batches(span["first"], span["end"])
        for batch in [joined(batches)] if self._extractor.one_by_one else batches:
            yield from self._extractor(batch)


def joined(batches: Iterable[Batch]) -> Batch:
    """Return several batches as one."""
    first, *others = batches
    return {name: [*values, *(x for other in others for x in other[name])] for name, values in first.items()}
