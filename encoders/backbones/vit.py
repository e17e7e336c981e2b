"""The patch tokens of a vision transformer.

Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.base import Backbone
from encoders.backbones.hub import Pretrained
from infra.registry import BACKBONES

_KIND = "a vision transformer"


@BACKBONES.register("vit")
class ViT(Backbone):
    """The last hidden state of every patch, row by row; DeiT and its like will do too.

    Args:
        name: a model on the hub, or a local folder.
        cls: put the [CLS] token before the patches. Other tokens that are no patches are always left out.
    """

    gpu = True
    backbone = "vit"
    kind = "AutoModel"
    """Class of transformers."""

    def __init__(self, *, name: str = "google/vit-base-patch16-224", cls: bool = False) -> None:
        self.cls = cls
        self._pretrained = Pretrained(name, kind=self.kind)
        self.dim: int = self._pretrained.setting("hidden_size", of=_KIND)
        self._patch: int = self._pretrained.setting("patch_size", of=_KIND)

    def describe(self) -> dict[str, Any]:
        """Return what the features depend on."""
        return {"backbone": self.backbone, "cls": self.cls} | self._pretrained.describe()

    def __call__(self, images: list[Image.Image]) -> list[np.ndarray]:
        """Return the `(patches, dim)` float32 features of each image; any mode and size will do."""
        pixels = self._pretrained.pixels(images)
        features = []
        for token_ND, image in zip(self._pretrained.states(pixels), pixels, strict=True):
            patches = (image.shape[1] // self._patch) * (image.shape[2] // self._patch)
            first_ND = token_ND[: int(self.cls)]
            features.append(np.concatenate([first_ND, token_ND[-patches:]]))
        return features
