"""An exponential moving average of the weights, which is scored and stored instead of the last weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polypool.infra.compute.device import device_of


class WeightAverage:
    """The moving average `a <- d a + (1 - d) w` of a model's trained weights and floating-point buffers.

    The decay d of step t is min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage, so that the
    initial weights fade quickly. Workers have equal weights, and so equal averages.

    Args:
        model: whose weights change in place.
        decay: of late steps, such as 0.999; 0 disables the average.

    Attributes:
        step: the next step t, a tensor on the device of the weights, so that a CUDA graph of the step increments it.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        counted = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self._own = {name: weight.detach() for name, weight in (trained | counted).items()} if decay else {}
        self._average = {name: weight.clone() for name, weight in self._own.items()}
        self.step = torch.zeros((), dtype=torch.float64, device=device_of(model))

    @torch.no_grad()
    def update(self) -> None:
        """Update the average after a step."""
        if self._own:
            averages, own = [*self._average.values()], [*self._own.values()]
            rate = (9 / (10 + self.step)).clamp(min=1 - self.decay)  # 1 - d
            rates = {dtype: rate.to(dtype) for dtype in {weight.dtype for weight in own}}
            # a list, because torch reads a single tensor on the host
            torch._foreach_lerp_(averages, own, [rates[weight.dtype] for weight in own])
            self.step += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the model's weights by the average within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """Return the average by weight name; empty if disabled."""
        return self._average

    def load(self, state: dict[str, Tensor]) -> None:
        """Load the averages of a state."""
        for name, average in self._average.items():
            average.copy_(state[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, own in self._own.items():
            kept = own.clone()
            own.copy_(self._average[name])
            self._average[name].copy_(kept)
