"""Regions of a detector: a linear map and a residual MLP, as VSE-infinity and as DivE lay them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from encoders.base import FeatureEncoder, xavier_linear
from encoders.visual.rows import Rows
from infra.compute.batchnorm import SetBatchNorm
from infra.compute.dropout import Dropout
from infra.registry import ENCODERS


class _ResidualMLP(FeatureEncoder):
    """A linear map `fc`, and an MLP with batch normalisation whose input is `inputs` wide."""

    def __init__(
        self, assets: Mapping[str, Any], *, width: int, inputs: int, hidden: int | None, standardise: bool
    ) -> None:
        super().__init__(assets, standardise=standardise)
        hidden = hidden or width // 2
        self.width = width
        self.fc = xavier_linear(assets["dim"], width)
        self.down = nn.Linear(inputs, hidden)
        self.norm = SetBatchNorm(hidden)
        self.up = nn.Linear(hidden, width)

    def mlp(self, x_RI: Tensor, real_R: Tensor | None) -> Tensor:
        """Map `(R, I)` to `(R, D)`; the statistics are those of the real elements."""
        return self.up(self.norm(self.down(x_RI), real_R).relu())


@ENCODERS.register("regions")
class Regions(_ResidualMLP):
    """A linear map plus an MLP with batch normalisation, both reading the raw features.

    The image encoder of VSE-infinity (its code, `EncoderImageAggr`).

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
        super().__init__(assets, width=width, inputs=assets["dim"], hidden=hidden, standardise=standardise)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        rows = Rows(mask_BN)
        x_RF = self.features(rows.of(x_BNF), rows.real_R)
        return rows.sets(self.fc(x_RF) + self.mlp(x_RF, rows.real_R)), mask_BN


@ENCODERS.register("stacked_regions")
class StackedRegions(_ResidualMLP):
    """A linear map, then an MLP with batch normalisation on top of it as a residual, then dropout.

    The image encoder of DivE: its MLP reads the joint space, not the raw features.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        hidden: width of the MLP; by default half of `width`.
        dropout: fraction of the elements' values dropped in training.
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
        super().__init__(assets, width=width, inputs=width, hidden=hidden, standardise=standardise)
        self.dropout = Dropout(dropout)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        rows = Rows(mask_BN)
        x_RD = self.fc(self.features(rows.of(x_BNF), rows.real_R))
        return self.dropout(rows.sets(x_RD + self.mlp(x_RD, rows.real_R))), mask_BN
