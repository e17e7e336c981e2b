"""Grid cells and patches: mapped one by one, or kept as they are beside a global feature of their mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from encoders.base import FeatureEncoder, xavier_linear
from infra.registry import ENCODERS


@ENCODERS.register("grid")
class Grid(FeatureEncoder):
    """A linear map of stored cells or patches, as VSE-infinity has it for the cells of a CNN.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        standardise: bring features to mean 0 and deviation 1 first.
    """

    def __init__(self, assets: Mapping[str, Any], *, width: int = 1024, standardise: bool = False) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.fc = xavier_linear(assets["dim"], width)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        return self.fc(self.features(x_BNF, mask_BN)), mask_BN


@ENCODERS.register("pooled_grid")
class PooledGrid(FeatureEncoder):
    """Elements are the cells as they are stored; the global feature is a linear map of their mean, as in VSE++.

    The image side of PVSE.

    Args:
        assets: see `FeatureEncoder`.
        width: width of the global feature; the elements keep that of the store.
        standardise: bring features to mean 0 and deviation 1 first.
    """

    def __init__(self, assets: Mapping[str, Any], *, width: int = 1024, standardise: bool = False) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = assets["dim"]
        self.global_width = width
        self.fc = xavier_linear(assets["dim"], width)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features `(B, N, F)` and global features `(B, S)`."""
        x_BNF = self.features(x_BNF, mask_BN)
        total_BF = x_BNF.masked_fill(~mask_BN[..., None], 0.0).sum(dim=1)
        return x_BNF, mask_BN, self.fc(total_BF / mask_BN.sum(dim=1, keepdim=True))
