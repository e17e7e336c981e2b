"""Dropout that is drawn by the sample: the same values go whatever worker a sample is on, and after any restart.

What is dropped of a sample depends on the seed, the step, which of a step's dropouts it is, the sample's place in the
global batch, and a value's place in the sample; not on how much a set is padded. So a run with one worker and one with
three see the same, where torch's generator would give each worker numbers of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from infra.compute.randomness import uniform

_BITS = 2**32
_FACTORS = (0x7FEB352D, 0x846CA68B)
"""Of the 32-bit hash `lowbias32`, whose output bits depend most evenly on its input (Wellons 2018)."""
_SPREAD = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
"""Odd numbers that keep the axes of a sample apart."""


@dataclass(kw_only=True)
class Draws:
    """The draws of one step on one worker.

    Attributes:
        seed, step: of the run.
        first: place in the global batch of this worker's first sample.
        samples: how many it has.
        count: dropouts so far in this step.
    """

    seed: int
    step: int
    first: int
    samples: int
    count: int = 0

    def keys(self, rows: int) -> Tensor:
        """Return a 32-bit number for each row of the step's next dropout, `(rows,)` int32.

        Rows that are a multiple of the samples, such as five captions of each image, belong to them in turn.
        """
        self.count += 1
        first = self.first * rows // self.samples
        key_B = uniform(self.seed, self.step, self.count, np.arange(first, first + rows))
        return torch.from_numpy((key_B * _BITS).astype(np.uint32).view(np.int32))


_DRAWS: ContextVar[Draws | None] = ContextVar("draws", default=None)


def current_draws() -> Draws | None:
    """Return the draws of the step that this is in."""
    return _DRAWS.get()


@contextmanager
def drawn(draws: Draws | None) -> Iterator[None]:
    """Let every `Dropout` inside draw by the sample; None for as torch draws."""
    token = _DRAWS.set(draws)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def drawn_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return what `torch.utils.checkpoint` takes as `context_fn`, so that what it computes again is dropped again."""
    draws = _DRAWS.get()
    return nullcontext(), drawn(replace(draws) if draws else None)


class Dropout(nn.Dropout):
    """Dropout of values of samples, which are the first axis of its input.

    In a training step of a run it is drawn by the sample; elsewhere, as in a loop of your own, as torch draws it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return `(B, ...)` values with a share of `p` at zero and the others scaled by 1 / (1 - p)."""
        draws = _DRAWS.get()
        if draws is None or not self.training or not 0 < self.p < 1 or x.ndim < 2 or not len(x):
            return super().forward(x)
        return x * keep(draws.keys(len(x)).to(x.device), x.shape, self.p).to(x.dtype).mul_(1 / (1 - self.p))


def keep(key_B: Tensor, shape: torch.Size, p: float) -> Tensor:
    """Return which values of `(B, ...)` stay, each with probability 1 - p, bool.

    Args:
        key_B: a number for each row, int32.
        shape: of the values.
        p: share that goes.
    """
    word = key_B.view(-1, *[1] * (len(shape) - 1))
    for axis, (size, spread) in enumerate(zip(shape[1:], _SPREAD, strict=False), 1):
        place = torch.arange(size, dtype=torch.int32, device=key_B.device) * _signed(spread)
        word = _hashed(word ^ place.view(-1, *[1] * (len(shape) - axis - 1)))
    return word >= round(p * _BITS) - _BITS // 2


def _hashed(word: Tensor) -> Tensor:
    """Mix the bits of 32-bit numbers, in place."""
    for shift, factor in zip((16, 15), _FACTORS, strict=True):
        word ^= (word >> shift) & ((1 << (32 - shift)) - 1)  # the sign is no bit to be copied
        word *= _signed(factor)
    word ^= (word >> 16) & 0xFFFF
    return word


def _signed(number: int) -> int:
    """Return a 32-bit number as int32 has it."""
    return number - _BITS if number >= _BITS // 2 else number


def by_sample(module: nn.Module) -> nn.Module:
    """Let the dropouts in a library's module draw by the sample; functions, as in its attention, go on as they do."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, Dropout(child.p, child.inplace))
        else:
            by_sample(child)
    return module
