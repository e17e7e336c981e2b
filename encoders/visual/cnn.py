"""Convolutional networks fine-tuned from pixels: the grid models of VSE-infinity (`EncoderImageFull`).

Jiang et al., "In defense of grid features for visual question answering", CVPR 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from polypool.encoders.encoder import xavier_linear
from polypool.encoders.visual.pixels import IMAGENET, ImageTransform, PixelEncoder
from polypool.encoders.visual.resnet import ResNet, fill, read_weights, resnet_weights
from polypool.infra.errors import InputError, unknown
from polypool.infra.paths import FilePath
from polypool.infra.registry import ENCODERS

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet101_caffe": {"depths": (3, 4, 23, 3), "caffe": True},
    "resnet152": {"depths": (3, 8, 36, 3)},
    "resnext101_32x8d": {"depths": (3, 4, 23, 3), "groups": 32, "widen": 4},
}
"""Parameters of `ResNet`; the first is the network of bottom-up attention (Anderson et al., CVPR 2018)."""
CAFFE: dict[str, Any] = {"mean": (102.9801, 115.9465, 122.7717), "std": (1.0, 1.0, 1.0), "bgr": True}
"""Preprocessing of bottom-up attention."""
STRIDE = 32


@ENCODERS.register("cnn")
class CNN(PixelEncoder):
    """The cells of the last feature map in row-major order, through a linear map.

    Batch statistics stay as in the published weights; all parameters are trainable.

    Args:
        assets: none.
        width: width D of the elements.
        name: `resnet101_caffe`, `resnet152` or `resnext101_32x8d`.
        weights: published weights to start from: `original_updown_backbone.pth` of VSE-infinity, or a file with
            torchvision's names, such as `resnet152-b121ed2d.pth` or `resnext101_32x8d_wsl`.
        size: side of the square that images are resized to, in pixels; a multiple of 32.
        layout: `own`, in which the network was trained, or `caffe`, in which the authors of VSE-infinity ran
            torchvision's weights of ResNet-152; colour statistics depend only on `name`.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        name: str = "resnet101_caffe",
        weights: FilePath = "",
        size: int = 512,
        layout: str = "own",
    ) -> None:
        super().__init__()
        if layout not in ("own", "caffe"):
            raise unknown("layout of a network:", layout, ("own", "caffe"))
        self.width, self.weights = width, weights
        settings: dict[str, Any] = _network(name)
        if layout == "caffe":
            settings = {**settings, "caffe": True}
        self.cnn = ResNet(**settings)
        self.fc = xavier_linear(self.cnn.width, width)

    @classmethod
    def transform(
        cls, assets: Mapping[str, Any], *, name: str = "resnet101_caffe", size: int = 512, **_: Any
    ) -> ImageTransform:
        if size < STRIDE or size % STRIDE:
            raise InputError(f"cnn: size must be a multiple of {STRIDE} pixels, not {size}")
        colours = CAFFE if _network(name).get("caffe") else IMAGENET
        return ImageTransform(size=size, cells=(size // STRIDE) ** 2, **colours)

    def load_pretrained(self) -> None:
        if self.weights:
            path = Path(self.weights)
            fill(self.cnn, resnet_weights(read_weights(path)), where=path)

    def cells(self, pixels_I3SS: Tensor) -> Tensor:
        map_ICHW = self.cnn(pixels_I3SS.to(self.fc.weight.dtype))
        return self.fc(map_ICHW.flatten(2).mT)


def _network(name: str) -> dict[str, Any]:
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    return NETWORKS[name]
