"""Texts that a frozen encoder described once: the states of their tokens, as `extract --texts` stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from encoders.base import FeatureEncoder
from infra.registry import ENCODERS


@ENCODERS.register("stored_text")
class StoredText(FeatureEncoder):
    """A linear map of stored states: with a store of `bert`, what `bert` with frozen weights makes of a text.

    Args:
        assets: see `FeatureEncoder`; of the store of texts.
        width: width D of the elements that come out.
        standardise: bring features to mean 0 and deviation 1 first.
    """

    def __init__(self, assets: Mapping[str, Any], *, width: int = 1024, standardise: bool = False) -> None:
        super().__init__(assets, standardise=standardise)
        self.width = width
        self.linear = nn.Linear(assets["dim"], width)

    def forward(self, x_BLF: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Map features `(B, L, F)` to `(B, L, D)`."""
        return self.linear(self.features(x_BLF, mask_BL)), mask_BL
