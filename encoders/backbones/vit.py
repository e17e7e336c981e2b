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
        grid: average the patches over the cells of a `grid` x `grid` partition; where None, each patch is kept. Where
            patches do not divide evenly, neighbouring cells share some.
        bfloat16: compute in it, which takes half the time where the processor or GPU has it in hardware.
    """

    gpu = True
    backbone = "vit"
    kind = "AutoModel"
    """Class of transformers."""

    def __init__(
        self,
        *,
        name: str = "google/vit-base-patch16-224",
        cls: bool = False,
        grid: int | None = None,
        bfloat16: bool = False,
    ) -> None:
        if grid is not None and grid < 1:
            raise ValueError(f"grid must be at least 1, not {grid}")
        self.cls, self.grid = cls, grid
        self._pretrained = Pretrained(name, kind=self.kind, bfloat16=bfloat16)
        self.note = self._pretrained.note
        self.dim: int = self._pretrained.setting("hidden_size", of=_KIND)
        self._patch: int = self._pretrained.setting("patch_size", of=_KIND)

    def describe(self) -> dict[str, Any]:
        """Return what the features depend on."""
        grid = {} if self.grid is None else {"grid": self.grid}
        return {"backbone": self.backbone, "cls": self.cls} | grid | self._pretrained.describe()

    def __call__(self, images: list[Image.Image]) -> list[np.ndarray]:
        """Return the `(patches, dim)` or `(grid * grid, dim)` float32 features of each image, after [CLS] if wanted.

        Any mode and size of an image will do.
        """
        pixels = self._pretrained.pixels(images)
        features = []
        for token_ND, image in zip(self._pretrained.states(pixels), pixels, strict=True):
            rows, columns = (side // self._patch for side in image.shape[1:])
            patch_ND = token_ND[-rows * columns :]
            if self.grid is not None:
                patch_ND = _cells(patch_ND.reshape(rows, columns, -1), self.grid)
            features.append(np.concatenate([token_ND[: int(self.cls)], patch_ND]))
        return features


def _cells(x_RCD: np.ndarray, grid: int) -> np.ndarray:
    """Return the `(grid * grid, D)` means over the cells of a partition, as `adaptive_avg_pool2d` lays them."""
    for axis in (0, 1):
        size = x_RCD.shape[axis]
        parts = [slice(cell * size // grid, -(-(cell + 1) * size // grid)) for cell in range(grid)]
        x_RCD = np.stack([x_RCD.swapaxes(0, axis)[part].mean(axis=0) for part in parts]).swapaxes(0, axis)
    return x_RCD.reshape(grid * grid, -1)
