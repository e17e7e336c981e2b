"""Aggregators that fail in training, named by tests as `failing_aggregator:Name`."""

from __future__ import annotations

import time

from torch import Tensor

from polypool.aggregators.aggregator import Pooled
from polypool.aggregators.averages.mean import Mean
from polypool.infra.errors import InputError


class Failing(Mean):
    """Can be built, and no more."""

    def forward(self, *args: Tensor, **named: Tensor) -> Pooled:
        raise ArithmeticError("nothing adds up")


class Refusing(Mean):
    """Finds its input wrong."""

    def forward(self, *args: Tensor, **named: Tensor) -> Pooled:
        raise InputError("the moon is in the wrong phase: wait a week")


class Blind(Mean):
    """Sees nothing, so that all embeddings are the same; slowly, so that it can be stopped on its way."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return ones that still have a gradient."""
        time.sleep(0.2 if self.training else 0)
        return Pooled(super().forward(x_BND, mask_BN).vectors * 0 + 1)
