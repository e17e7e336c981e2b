"""ResNet's last feature map: one element for each of its cells, as the grid models of VSE-infinity have it.

He et al., "Deep residual learning for image recognition", CVPR 2016; Jiang et al., "In defense of grid features for
visual question answering", CVPR 2020.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from encoders.backbones.base import Backbone
from encoders.backbones.hub import Pretrained
from infra.pictures.rgb import rgb
from infra.registry import BACKBONES


@BACKBONES.register("resnet")
class ResNetBackbone(Backbone):
    """The cells of the last feature map, row by row; any convolutional model of transformers will do.

    Args:
        name: a model on the hub, or a local folder.
        size: squeeze the whole image to a square of this many pixels, 512 in VSE-infinity; by default the image goes
            through the model's own preprocessing, which cuts the border off.
    """

    gpu = True

    def __init__(self, *, name: str = "microsoft/resnet-50", size: int | None = None) -> None:
        if size is not None and size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}")
        self.size = size
        self._pretrained = Pretrained(name)
        self.dim: int = self._pretrained.setting("hidden_sizes", of="a ResNet or its like")[-1]

    def describe(self) -> dict[str, Any]:
        """Return what the features depend on."""
        return {"backbone": "resnet", "size": self.size} | self._pretrained.describe()

    def __call__(self, images: list[Image.Image]) -> list[np.ndarray]:
        """Return the `(cells, dim)` float32 features of each image; any mode and size will do."""
        options = {}
        if self.size is not None:
            square = (self.size, self.size)
            images = [rgb(image).resize(square, Image.Resampling.BICUBIC) for image in images]
            options = {"do_resize": False, "do_center_crop": False}
        maps_DHW = self._pretrained.states(self._pretrained.pixels(images, **options))
        return [np.ascontiguousarray(map_DHW.reshape(self.dim, -1).T) for map_DHW in maps_DHW]
