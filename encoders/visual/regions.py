"""Regions of a detector: the image encoder of VSE-infinity (its code, `EncoderImageAggr`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from encoders.base import FeatureEncoder, xavier_linear
from encoders.visual.batchnorm import SetBatchNorm
from infra.registry import ENCODERS


@ENCODERS.register("regions")
class Regions(FeatureEncoder):
    """A linear map plus a residual MLP with batch normalisation, both reading the raw features.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        hidden: width of the MLP; by default half of `width`.
        standardise: bring features to mean 0 and deviation 1 first.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        hidden: int | None = None,
        standardise: bool = False,
    ) -> None:
        super().__init__(assets, standardise=standardise)
        hidden = hidden or width // 2
        self.width = width
        self.fc = xavier_linear(assets["dim"], width)
        self.down = nn.Linear(assets["dim"], hidden)
        self.norm = SetBatchNorm(hidden)
        self.up = nn.Linear(hidden, width)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        x_BNF = self.features(x_BNF, mask_BN)
        hidden_BNH = self.norm(self.down(x_BNF), mask_BN).relu()
        return self.fc(x_BNF) + self.up(hidden_BNH), mask_BN
