"""Frames of a video, or its short clips: the video encoder of HGR (Chen et al., CVPR 2020, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from encoders.base import FeatureEncoder
from infra.compute.dropout import Dropout
from infra.registry import ENCODERS


@ENCODERS.register("frames")
class Frames(FeatureEncoder):
    """One linear map, then dropout; no activation.

    Args:
        assets: see `FeatureEncoder`.
        width: width D of the elements that come out.
        dropout: fraction of their values dropped in training.
        standardise: bring features to mean 0 and deviation 1 first.
    """

    def __init__(
        self, assets: Mapping[str, Any], *, width: int = 1024, dropout: float = 0.2, standardise: bool = False
    ) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.fc = nn.Linear(assets["dim"], width)
        self.dropout = Dropout(dropout)

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, N, F)` to `(B, N, D)`."""
        return self.dropout(self.fc(self.features(x_BNF, mask_BN))), mask_BN
