"""Batches of a data set in an order determined by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError

Batch = dict[str, Tensor]
"""Tensors by name, with samples on the first axis; `x_mask` is the bool mask of `x`."""


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

    A thread prefetches the next batch.
    """
    epoch = samples // order.epoch_samples

    def make(index_B: np.ndarray) -> tuple[int, dict[str, Tensor]]:
        batch = data.batch(np.array_split(index_B, world())[rank()], seed=order.seed, epoch=epoch)
        if device.type == "cuda":
            batch = {key: x.pin_memory().to(device, non_blocking=True) for key, x in batch.items()}
        return len(index_B), batch

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        waiting = None
        for index_B in order.batches(samples):
            coming = pool.submit(make, index_B)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()
