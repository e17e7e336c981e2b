"""Convolutional networks fine-tuned from pixels: the grid models of VSE-infinity (its code, `EncoderImageFull`).

Jiang et al., "In defense of grid features for visual question answering", CVPR 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from encoders.base import xavier_linear
from encoders.visual.pixels import IMAGENET, ImageTransform, PixelEncoder
from encoders.visual.resnet import ResNet
from encoders.visual.weights import fill, read_weights, resnet_weights
from infra.errors import InputError, unknown
from infra.paths import resolve
from infra.registry import ENCODERS

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet101_caffe": {"depths": (3, 4, 23, 3), "caffe": True},
    "resnet152": {"depths": (3, 8, 36, 3)},
    "resnext101_32x8d": {"depths": (3, 4, 23, 3), "groups": 32, "widen": 4},
}
"""Parameters of `ResNet`. The first is the network of bottom-up attention: Anderson et al., CVPR 2018."""
CAFFE = {"mean": (102.9801, 115.9465, 122.7717), "std": (1.0, 1.0, 1.0), "bgr": True}
"""What bottom-up attention does to pixels."""
STRIDE = 32


@ENCODERS.register("cnn")
class CNN(PixelEncoder):
    """Each cell of the last feature map, row by row, through a linear map.

    Batch statistics stay those of pretraining; everything else can be trained.

    Args:
        assets: none.
        width: width D of the elements that come out.
        name: `resnet101_caffe`, `resnet152` or `resnext101_32x8d`.
        weights: path of the published file that a new model starts from: `original_updown_backbone.pth` of
            VSE-infinity, or a file of torchvision's names such as `resnet152-b121ed2d.pth` or that of
            `resnext101_32x8d_wsl`. A model from a checkpoint does not need it.
        size: side of the square that images are squashed to, in pixels; a multiple of 32.
        layout: `own`, that the network was trained in, or `caffe`, in which the authors of VSE-infinity ran
            torchvision's weights of ResNet-152, too; the colours stay those of the weights.

    Raises:
        InputError: no such network or layout.
    """

    def __init__(
        self,
        assets: Mapping[str, Any],
        *,
        width: int = 1024,
        name: str = "resnet101_caffe",
        weights: str = "",
        size: int = 512,
        layout: str = "own",
    ) -> None:
        super().__init__()
        if layout not in ("own", "caffe"):
            raise unknown("layout of a network:", layout, ("own", "caffe"))
        self.width, self.weights = width, weights
        self.cnn = ResNet(**_network(name) | ({"caffe": True} if layout == "caffe" else {}))
        self.fc = xavier_linear(self.cnn.width, width)

    @classmethod
    def transform(
        cls, assets: Mapping[str, Any], *, name: str = "resnet101_caffe", size: int = 512, **_: Any
    ) -> ImageTransform:
        """Return VSE-infinity's squares, in the colours that the network was trained with."""
        if size < STRIDE or size % STRIDE:
            raise InputError(f"cnn: size must be a multiple of {STRIDE} pixels, not {size}")
        colours = CAFFE if _network(name).get("caffe") else IMAGENET
        return ImageTransform(size=size, cells=(size // STRIDE) ** 2, **colours)

    def load_pretrained(self) -> None:
        """Load the published file, where one is named."""
        if self.weights:
            path = resolve(self.weights)
            fill(self.cnn, resnet_weights(read_weights(path), where=path), where=path)

    def forward(self, pixels_B3SS: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images to cells `(B, N, D)`; the mask comes back as it is."""
        map_BCHW = self.cnn(pixels_B3SS.to(self.fc.weight.dtype))
        return self.fc(map_BCHW.flatten(2).mT), mask_BN


def _network(name: str) -> dict[str, Any]:
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    return NETWORKS[name]
