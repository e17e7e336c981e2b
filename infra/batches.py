"""Batches of a data set in an order determined by seed and epoch."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polypool.infra.compute.device import on_device
from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError

T = TypeVar("T")
Batch = dict[str, Tensor]
"""Tensors by name, with samples on the first axis; `x_mask` is the bool mask of `x`."""

THREADS = 4
"""Threads that make the batches of a GPU."""


class Dataset(Protocol):
    """Samples by index; their content is determined by index, seed and epoch."""

    def __len__(self) -> int: ...

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return the batch of these samples, with the augmentation of this epoch."""


@runtime_checkable
class Ordered(Protocol):
    """A data set that defines its own sample order."""

    def order(self, *, batch: int, unit: int, seed: int) -> Order:
        """Return the order of all epochs."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a data set's samples over all epochs.

    Progress is counted in samples of the global batch, so that it does not depend on the number of workers.

    Attributes:
        size: number of samples in the data set.
        batch: size of a global batch.
        unit: an epoch has a multiple of this many samples: the batch size if incomplete batches are dropped, otherwise
            a number that every possible number of workers divides.
        seed: of the permutations.
    """

    size: int
    batch: int
    unit: int
    seed: int

    def __post_init__(self) -> None:
        if self.epoch_samples == 0:
            raise InputError(
                f"the training split has {self.size} samples, fewer than one batch of {self.batch}; "
                "choose a smaller batch (--optim.batch)"
            )

    @property
    def epoch_samples(self) -> int:
        return self.size // self.unit * self.unit

    @property
    def epoch_steps(self) -> int:
        return -(-self.epoch_samples // self.batch)

    def batches(self, samples: int) -> Iterator[np.ndarray]:
        """Yield the sample indices of each global batch for the rest of the epoch, after `samples` samples."""
        epoch, offset = divmod(samples, self.epoch_samples)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.size)[: self.epoch_samples]
        for start in range(offset, self.epoch_samples, self.batch):
            yield order[start : start + self.batch]


def order_of(data: Dataset, *, batch: int, unit: int, seed: int) -> Order:
    """Return the data set's own order, or one with a new permutation per epoch."""
    if isinstance(data, Ordered):
        return data.order(batch=batch, unit=unit, seed=seed)
    return Order(size=len(data), batch=batch, unit=unit, seed=seed)


def load(
    data: Dataset, order: Order, samples: int, device: torch.device
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield `(size of the global batch, this worker's part on the device)` for the rest of an epoch.

    A thread makes the next batch while the current one is used; for a GPU, several threads make several.
    """
    epoch = samples // order.epoch_samples

    def make(index_B: np.ndarray) -> tuple[int, Batch]:
        part_B = np.array_split(index_B, world())[rank()]
        return len(index_B), data.batch(part_B, seed=order.seed, epoch=epoch)

    makes = (partial(make, index_B) for index_B in order.batches(samples))
    return _ahead(makes, device, threads=THREADS if device.type == "cuda" else 1)


def arriving(batches: Iterable[tuple[T, Batch]], device: torch.device) -> Iterator[tuple[T, Batch]]:
    """Yield labelled batches on the device; for a GPU, a thread makes the next ones."""
    if device.type == "cpu":
        return iter(batches)
    return _ahead(itertools.repeat(partial(next, iter(batches), None)), device, threads=1)


def _ahead(
    makes: Iterable[Callable[[], tuple[T, Batch] | None]], device: torch.device, *, threads: int
) -> Iterator[tuple[T, Batch]]:
    """Call functions in threads, ahead of their use, and yield the batches on the device until one returns None.

    For a GPU, batches are padded to few widths, and a separate stream copies them from pinned memory.
    """
    copies = torch.cuda.Stream(device) if device.type == "cuda" else None
    if copies is not None:
        copies.wait_stream(torch.cuda.current_stream(device))  # features may have been copied on this stream

    def made(make: Callable[[], tuple[T, Batch] | None]) -> tuple[tuple[T, Batch] | None, Any]:
        if copies is None:
            part = make()
            return part and (part[0], on_device(part[1], device)), None
        with torch.cuda.stream(copies):
            if (part := make()) is None:
                return None, None
            label, batch = part
            there = {
                name: x if x.is_cuda else x.pin_memory().to(device, non_blocking=True)
                for name, x in in_few_widths(batch).items()
            }
            return (label, there), copies.record_event()

    def arrived(coming: Future[tuple[tuple[T, Batch] | None, Any]]) -> tuple[T, Batch] | None:
        part, copied = coming.result()
        if part is not None and copied is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(copied)
            for x in part[1].values():
                x.record_stream(stream)
        return part

    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="batches") as pool:
        coming: deque[Future[tuple[tuple[T, Batch] | None, Any]]] = deque()
        for make in makes:
            coming.append(pool.submit(made, make))
            if len(coming) > threads:
                if (part := arrived(coming.popleft())) is None:
                    return
                yield part
        for last in coming:
            if (part := arrived(last)) is not None:
                yield part


def in_few_widths(batch: Batch) -> Batch:
    """Pad sets by at most an eighth, to one of 8 widths per octave, so that batches have few shapes."""
    padded = dict(batch)
    for name, mask_BN in batch.items():
        x = batch.get(name.removesuffix("_mask"))
        if not name.endswith("_mask") or x is None or x.ndim > 3 or x.shape[:2] != mask_BN.shape:
            continue
        size = mask_BN.shape[1]
        step = 1 << max(0, size.bit_length() - 4)
        more = -size % step
        padded[name] = F.pad(mask_BN, (0, more))
        padded[name.removesuffix("_mask")] = F.pad(x, (0, 0) * (x.ndim - 2) + (0, more))
    return padded
