"""Batches of a data set in an order determined by seed and epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError

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

    A thread makes the next batch while the current one is used. For a GPU, threads make several, padded to few widths,
    and a separate stream copies them.
    """
    epoch, gpu = samples // order.epoch_samples, device.type == "cuda"
    copies = torch.cuda.Stream(device) if gpu else None
    if copies is not None:
        copies.wait_stream(torch.cuda.current_stream(device))  # features may have been copied on this stream

    def make(index_B: np.ndarray) -> tuple[int, Batch, Any]:
        batch = data.batch(np.array_split(index_B, world())[rank()], seed=order.seed, epoch=epoch)
        if copies is None:
            return len(index_B), batch, None
        with torch.cuda.stream(copies):
            batch = {
                name: x if x.is_cuda else x.pin_memory().to(device, non_blocking=True)
                for name, x in in_few_widths(batch).items()
            }
            return len(index_B), batch, copies.record_event()

    def arrived(coming: Future[tuple[int, Batch, Any]]) -> tuple[int, Batch]:
        size, batch, copied = coming.result()
        if copied is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(copied)
            for x in batch.values():
                x.record_stream(stream)
        return size, batch

    ahead = THREADS if gpu else 1
    with ThreadPoolExecutor(max_workers=ahead, thread_name_prefix="batches") as pool:
        coming: deque[Future[tuple[int, Batch, Any]]] = deque()
        for index_B in order.batches(samples):
            coming.append(pool.submit(make, index_B))
            if len(coming) > ahead:
                yield arrived(coming.popleft())
        while coming:
            yield arrived(coming.popleft())


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
