"""Doing a computation twice with the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from infra.compute.dropout import Draws, drawn


class Replay:
    """The random numbers of a computation: those drawn by the sample, and those of torch's generators.

    Args:
        draws: what is drawn by the sample, with the count from which on; None outside a training step.
        device: of the computation.
    """

    def __init__(self, draws: Draws | None, device: torch.device) -> None:
        self.draws, self.device = draws, device
        self.cuda = [device] if device.type == "cuda" else []
        self._states: list[torch.Tensor] = []

    @contextmanager
    def first(self) -> Iterator[Draws | None]:
        """Draw for the first time; what it yields counts the dropouts."""
        self._states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.cuda)]
        own = replace(self.draws) if self.draws else None
        with drawn(own):
            yield own

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same once more, and leave torch's generators as they were."""
        with torch.random.fork_rng(devices=self.cuda), drawn(replace(self.draws) if self.draws else None):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self.cuda, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
