"""Batches of several tasks in a random order, each batch with samples of one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polypool.infra.batches import Batch, Dataset, Order

MEMBER = "joint_member"  # key in a batch: the index of its task, once for each sample


@dataclass(frozen=True, kw_only=True)
class JointOrder(Order):
    """Batches of one task each, in the ratio of the weights, in a new random order for each epoch.

    The samples of all tasks together determine the number of steps of an epoch. Each task makes its own passes over its
    samples, called rounds, in whole batches; the number of a sample encodes the round, too.

    Attributes:
        weights: of the tasks.
        sizes: numbers of samples of the tasks.
    """

    weights: tuple[float, ...]
    sizes: tuple[int, ...]

    @property
    def epoch_samples(self) -> int:
        """Number of samples of all tasks in an epoch, in whole batches."""
        return self.size // self.batch * self.batch

    @property
    def steps_of_each(self) -> np.ndarray:
        """Steps of each task in an epoch: its share, rounded by largest remainders."""
        share = np.array(self.weights) / sum(self.weights) * self.epoch_steps
        steps = np.floor(share).astype(np.int64)
        rest = np.argsort(steps - share, kind="stable")[: self.epoch_steps - steps.sum()]
        steps[rest] += 1
        return steps

    def batches(self, samples: int) -> Iterator[np.ndarray]:
        """Yield the rest of the epoch after `samples` samples: the sample numbers of each global batch."""
        epoch, offset = divmod(samples, self.epoch_samples)
        steps = self.steps_of_each
        member_S = np.repeat(np.arange(len(steps)), steps)
        member_S = np.random.default_rng((self.seed, epoch, len(steps))).permutation(member_S)
        done = offset // self.batch
        taken = epoch * steps + np.bincount(member_S[:done], minlength=len(steps))
        rounds: dict[int, tuple[int, np.ndarray]] = {}
        for member in member_S[done:].tolist():
            yield self._batch(member, int(taken[member]), rounds)
            taken[member] += 1

    def _batch(self, member: int, number: int, rounds: dict[int, tuple[int, np.ndarray]]) -> np.ndarray:
        """Return the samples of batch `number` of a task, from 0; `rounds` caches each task's last permutation."""
        size = self.sizes[member]
        round_, place = divmod(number, size // self.batch)
        if rounds.get(member, (-1,))[0] != round_:
            rounds[member] = round_, np.random.default_rng((self.seed, round_, member)).permutation(size)
        order = rounds[member][1][place * self.batch : (place + 1) * self.batch]
        return order + sum(self.sizes[:member]) + round_ * self.size


class JointData:
    """The concatenated samples of several tasks.

    Args:
        members: data sets by the name of their task.
        weights: relative frequency of each task, by its name.
    """

    def __init__(self, members: Mapping[str, Dataset], weights: Mapping[str, float]) -> None:
        self.members, self.weights = [*members.values()], tuple(weights[name] for name in members)
        self.sizes = tuple(map(len, self.members))

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def stored(self) -> list[Any]:
        """The inputs of all tasks that read stores."""
        return [inputs for member in self.members for inputs in getattr(member, "stored", ())]

    def order(self, *, batch: int, unit: int, seed: int) -> JointOrder:
        return JointOrder(
            size=len(self), batch=batch, unit=unit, seed=seed, weights=self.weights, sizes=self.sizes
        )

    def batch(self, index_B: np.ndarray, *, seed: int, epoch: int) -> Batch:
        """Return a batch of one task, augmented by its round instead of the common epoch."""
        round_B, number_B = np.divmod(index_B, len(self))
        ends = np.cumsum(self.sizes)
        member = int(np.searchsorted(ends, number_B[0], side="right"))
        own_B = number_B - (ends[member] - self.sizes[member])
        batch = self.members[member].batch(own_B, seed=seed, epoch=int(round_B[0]))
        return batch | {MEMBER: torch.full((len(index_B),), member)}
