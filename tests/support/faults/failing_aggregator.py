"""Aggregators that fail in training, named by tests as `failing_aggregator:Name`."""

from __future__ import annotations

import time

from torch import Tensor

from polypool.aggregators.aggregator import Pooled
from polypool.aggregators.averages.mean import Mean
from polypool.infra.errors import InputError


class Failing(Mean):
    """Fails in `forward`."""

    def forward(self, *args: Tensor, **named: Tensor) -> Pooled:
        raise ArithmeticError("nothing adds up")


class Refusing(Mean):
    """Raises an `InputError` in `forward`."""

    def forward(self, *args: Tensor, **named: Tensor) -> Pooled:
        raise InputError("the moon is in the wrong phase: wait a week")


class Blind(Mean):
    """Returns the same embedding for all inputs; sleeps in training, so that a run can be stopped midway."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return ones that still have a gradient."""
        time.sleep(0.2 if self.training else 0)
        return Pooled(super().forward(x_BND, mask_BN).vectors * 0 + 1)
