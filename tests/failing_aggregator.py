"""An aggregator that fails when it is trained, named by tests as `failing_aggregator:Failing`."""

from __future__ import annotations

from torch import Tensor

from aggregators.mean import Mean


class Failing(Mean):
    """Can be built, and no more."""

    def forward(self, *args: Tensor, **given: Tensor) -> Tensor:
        raise ArithmeticError("nothing adds up")
