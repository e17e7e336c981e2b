"""Dropout with a counter-based mask per sample: the same for any number of workers, and after any restart.

The mask depends on the seed, the step, the index of the dropout within the step, the sample's index in the global
batch, and the value's index in the sample; it does not depend on a set's padding. With torch's generator, each worker
would draw other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from polypool.infra.compute.randomness import state_of, uniform, words

_BITS = 2**32
_FACTORS = (0x7FEB352D, 0x846CA68B)
"""Constants of the 32-bit hash `lowbias32` (Wellons 2018)."""
_SPREAD = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
"""Odd multipliers that decorrelate the axes of a sample."""


@dataclass(kw_only=True)
class Draws:
    """The random state of one step on one worker.

    Attributes:
        seed, step: of the run.
        first: index of this worker's first sample in the global batch.
        samples: number of its samples.
        count: dropouts so far in this step.
        state: hash of seed and step on a device, `()` int64, if a CUDA graph reads it at each replay.
    """

    seed: int
    step: int
    first: int
    samples: int
    count: int = 0
    state: Tensor | None = None

    def keys(self, rows: int, device: torch.device) -> Tensor:
        """Return a 32-bit key for each row of the step's next dropout, `(rows,)` int32.

        Rows of one sample, such as the five captions of an image, are consecutive.
        """
        self.count += 1
        first = self.first * rows // self.samples
        if device.type != "cpu" or self.state is not None:  # without a copy from the host
            state = self.state
            if state is None:
                state = torch.full((), state_of(self.seed, self.step), device=device)
            return words(state, self.count, torch.arange(first, first + rows, device=state.device))
        key_B = uniform(self.seed, self.step, self.count, np.arange(first, first + rows))
        return torch.from_numpy((key_B * _BITS).astype(np.uint32).view(np.int32))


_DRAWS: ContextVar[Draws | None] = ContextVar("draws", default=None)


def current_draws() -> Draws | None:
    """Return the random state of the current step; None outside a step."""
    return _DRAWS.get()


@contextmanager
def drawn(draws: Draws | None) -> Iterator[None]:
    """Make every `Dropout` inside draw masks per sample; with None, from torch's generator."""
    token = _DRAWS.set(draws)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def drawn_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of `torch.utils.checkpoint` (`context_fn`) that make recomputation draw the same masks."""
    draws = _DRAWS.get()
    return nullcontext(), drawn(replace(draws) if draws else None)


class Dropout(nn.Dropout):
    """Dropout whose input has samples on its first axis.

    Masks are drawn per sample inside `drawn`, as in the training loop; otherwise, and in compiled code, by torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        draws = None if torch.compiler.is_compiling() else _DRAWS.get()
        if draws is None or not self.training or not 0 < self.p < 1 or x.ndim < 2 or not len(x):
            return super().forward(x)
        return x * keep(draws.keys(len(x), x.device), x.shape, self.p).to(x.dtype).mul_(1 / (1 - self.p))


def keep(key_B: Tensor, shape: torch.Size, p: float) -> Tensor:
    """Return the bool mask of values `(B, ...)` to keep, each with probability 1 - p; `key_B` has int32 keys."""
    word = key_B.view(-1, *[1] * (len(shape) - 1))
    for axis, (size, spread) in enumerate(zip(shape[1:], _SPREAD, strict=False), 1):
        place = torch.arange(size, dtype=torch.int32, device=key_B.device) * _signed(spread)
        word = _hashed(word ^ place.view(-1, *[1] * (len(shape) - axis - 1)))
    return word >= round(p * _BITS) - _BITS // 2


def _hashed(word: Tensor) -> Tensor:
    """Mix the bits of 32-bit numbers, in place."""
    for shift, factor in zip((16, 15), _FACTORS, strict=True):
        word ^= (word >> shift) & ((1 << (32 - shift)) - 1)  # shift without sign extension
        word *= _signed(factor)
    word ^= (word >> 16) & 0xFFFF
    return word


def _signed(number: int) -> int:
    """Return an unsigned 32-bit number as int32."""
    return number - _BITS if number >= _BITS // 2 else number


def by_sample(module: nn.Module) -> nn.Module:
    """Replace the dropout modules inside a library's module; functional dropout, as in attention, remains."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, Dropout(child.p, child.inplace))
        else:
            by_sample(child)
    return module


class Replay:
    """Repeats a computation with the same random numbers, counter-based ones and those drawn from torch's generators.

    Args:
        draws: state of the step before the computation; None outside a training step.
        device: of the computation.
    """

    def __init__(self, draws: Draws | None, device: torch.device) -> None:
        self.draws, self.device = draws, device
        self.cuda = [device] if device.type == "cuda" else []
        self._states: list[torch.Tensor] = []

    @contextmanager
    def first(self) -> Iterator[Draws | None]:
        """Compute for the first time; yield the state that counts the dropouts."""
        self._states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.cuda)]
        own = replace(self.draws) if self.draws else None
        with drawn(own):
            yield own

    @contextmanager
    def again(self) -> Iterator[None]:
        """Recompute, then restore the state of torch's generators."""
        with torch.random.fork_rng(devices=self.cuda), drawn(replace(self.draws) if self.draws else None):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self.cuda, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
