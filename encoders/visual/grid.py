"""Grid cells and patches: one linear map, as VSE-infinity does for the cells of a CNN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from encoders.base import FeatureEncoder, xavier_linear
from infra.registry import ENCODERS


@ENCODERS.register("grid")
class Grid(FeatureEncoder):
    """A linear map of stored cells or patches.

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
