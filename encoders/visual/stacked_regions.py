"""Regions of a detector as DivE encodes them: its residual MLP reads the joint space, not the raw features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from encoders.base import FeatureEncoder, xavier_linear
from encoders.visual.batchnorm import SetBatchNorm
from infra.registry import ENCODERS


@ENCODERS.register("stacked_regions")
class StackedRegions(FeatureEncoder):
    """A linear map, then a residual MLP with batch normalisation on top of it, then dropout.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        hidden: width of the MLP; by default half of `width`.
        dropout: share of the elements' values dropped in training.
        standardise: bring features to mean 0 and deviation 1 first.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        hidden: int | None = None,
        dropout: float = 0.1,
        standardise: bool = False,
    ) -> None:
        super().__init__(assets, standardise=standardise)
        hidden = hidden or width // 2
        self.width = width
        self.fc = xavier_linear(assets["dim"], width)
        self.down = nn.Linear(width, hidden)
        self.norm = SetBatchNorm(hidden)
        self.up = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        x_BND = self.fc(self.features(x_BNF, mask_BN))
        hidden_BNH = self.norm(self.down(x_BND), mask_BN).relu()
        return self.dropout(x_BND + self.up(hidden_BNH)), mask_BN
