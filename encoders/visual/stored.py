"""Stored features as they are: embeddings of a pretrained pair, which need no map to meet the text's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from encoders.base import FeatureEncoder
from infra.registry import ENCODERS


@ENCODERS.register("stored")
class Stored(FeatureEncoder):
    """No weights: what is stored is the set, in its own width.

    Args:
        assets: see `FeatureEncoder`.
        unit: bring each element to length 1, as CLIP4Clip does with frames before it averages them.
    """

    def __init__(self, assets: Mapping[str, Any], *, unit: bool = False) -> None:
        super().__init__(assets, standardise=False)
        self.width: int = assets["dim"]
        self.unit = unit

    def forward(self, x_BNF: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return features `(B, N, F)` in float32."""
        x_BNF = x_BNF.float()
        return (nn.functional.normalize(x_BNF, dim=-1, eps=1e-8) if self.unit else x_BNF), mask_BN
