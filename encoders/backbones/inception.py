"""Inception-v1 inflated to three dimensions: I3D on RGB frames.

Carreira and Zisserman, "Quo vadis, action recognition? A new model and the Kinetics dataset", CVPR 2017, figure 3.
Layers are named as in the PyTorch port that published `rgb_imagenet.pt`, so that this file loads; padding is that of
TensorFlow, in which the weights were trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.encoders.visual.resnet import FrozenBatchNorm, fill, read_weights

STRIDE = 8
"""Frames per step of the last map; its height and width are 1/32 of the frames'."""

_STEM = {  # outputs, kernel and stride
    "Conv3d_1a_7x7": (64, 7, 2),
    "Conv3d_2b_1x1": (64, 1, 1),
    "Conv3d_2c_3x3": (192, 3, 1),
}
_POOLS = {  # kernel and stride
    "MaxPool3d_2a_3x3": ((1, 3, 3), (1, 2, 2)),
    "MaxPool3d_3a_3x3": ((1, 3, 3), (1, 2, 2)),
    "MaxPool3d_4a_3x3": ((3, 3, 3), (2, 2, 2)),
    "MaxPool3d_5a_2x2": ((2, 2, 2), (2, 2, 2)),
}
_MIXED = {  # outputs of b0, b1a, b1b, b2a, b2b and b3b
    "Mixed_3b": (64, 96, 128, 16, 32, 32),
    "Mixed_3c": (128, 128, 192, 32, 96, 64),
    "Mixed_4b": (192, 96, 208, 16, 48, 64),
    "Mixed_4c": (160, 112, 224, 24, 64, 64),
    "Mixed_4d": (128, 128, 256, 24, 64, 64),
    "Mixed_4e": (112, 144, 288, 32, 64, 64),
    "Mixed_4f": (256, 160, 320, 32, 128, 128),
    "Mixed_5b": (256, 160, 320, 32, 128, 128),
    "Mixed_5c": (384, 192, 384, 48, 128, 128),
}
_ORDER = sorted((*_STEM, *_POOLS, *_MIXED), key=lambda name: name.split("_")[1])  # 1a, 2a, 2b, ... 5c


def pad_same(x_BCTHW: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Pad with zeros for ceil(size / stride) windows of `kernel` at steps of `stride`, as TensorFlow's SAME.

    Odd padding puts the extra zero at the end.
    """
    pads: list[int] = []
    for size, width, step in zip(x_BCTHW.shape[:1:-1], reversed(kernel), reversed(stride), strict=True):
        total = max((-(-size // step) - 1) * step + width - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x_BCTHW, pads)


class Unit(nn.Module):
    """A convolution, batch normalisation by running statistics, and a ReLU.

    Args:
        inputs: input channels.
        outputs: output channels.
        kernel: size in all three dimensions.
        stride: in all three dimensions.
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(inputs, outputs, kernel, stride, bias=False)
        self.bn = FrozenBatchNorm(outputs, eps=1e-3)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return the map, downsampled by the stride."""
        conv = self.conv3d
        return self.bn(conv(pad_same(x_BCTHW, conv.kernel_size, conv.stride))).relu_()


class MaxPool(nn.Module):
    """Max pooling with zero padding; inputs are non-negative.

    Args:
        kernel: size of a window.
        stride: steps between windows.
    """

    def __init__(self, kernel: tuple[int, int, int], stride: tuple[int, int, int]) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return the map, downsampled by the stride."""
        return F.max_pool3d(pad_same(x_BCTHW, self.kernel, self.stride), self.kernel, self.stride)


class Mixed(nn.Module):
    """The inflated Inception block with four parallel branches (figure 3, right).

    Args:
        inputs: input channels.
        outputs: channels of the units b0, b1a, b1b, b2a, b2b and b3b; the block concatenates b0, b1b, b2b and b3b.
    """

    def __init__(self, inputs: int, outputs: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3b = outputs
        self.b0 = Unit(inputs, b0)
        self.b1a, self.b1b = Unit(inputs, b1a), Unit(b1a, b1b, kernel=3)
        self.b2a, self.b2b = Unit(inputs, b2a), Unit(b2a, b2b, kernel=3)
        self.b3a, self.b3b = MaxPool((3, 3, 3), (1, 1, 1)), Unit(inputs, b3b)
        self.width = b0 + b1b + b2b + b3b

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return the branches' outputs, concatenated along the channels."""
        branches = (self.b0(x_BCTHW), self.b1b(self.b1a(x_BCTHW)), self.b2b(self.b2a(x_BCTHW)))
        return torch.cat([*branches, self.b3b(self.b3a(x_BCTHW))], dim=1)


class I3D(nn.Module):
    """The network on RGB frames, without its classifier and the dropout before it."""

    def __init__(self) -> None:
        super().__init__()
        width = 3
        for name in _ORDER:
            if name in _STEM:
                outputs, kernel, stride = _STEM[name]
                module: nn.Module = Unit(width, outputs, kernel=kernel, stride=stride)
                width = outputs
            elif name in _POOLS:
                module = MaxPool(*_POOLS[name])
            else:
                module = Mixed(width, _MIXED[name])
                width = module.width
            self.add_module(name, module)

    @classmethod
    def load(cls, path: Path) -> I3D:
        """Return the network with the weights of a file such as `rgb_imagenet.pt`; a classifier in it is ignored.

        Raises:
            InputError: a missing file, or weights of another network; missing and unexpected names are listed.
        """
        weights = {
            name: value
            for name, value in read_weights(path).items()
            if not name.startswith("logits.") and not name.endswith(".num_batches_tracked")
        }
        network = cls()
        fill(network, weights, where=path)
        return network.eval()

    def last_map(self, pixels_B3THW: Tensor) -> Tensor:
        """Return the last map `(B, 1024, T / 8, H / 32, W / 32)`, sizes rounded up.

        Args:
            pixels_B3THW: RGB in [-1, 1].
        """
        x_BCTHW = pixels_B3THW
        for name in _ORDER:
            x_BCTHW = self.get_submodule(name)(x_BCTHW)
        return x_BCTHW

    def forward(self, pixels_B3THW: Tensor) -> Tensor:
        """Return the features `(B, ceil(T / 8) - 1, 1024)`: means over two steps and 7 x 7 positions of the last map.

        Args:
            pixels_B3THW: RGB in [-1, 1], at least 9 frames of 193 to 224 pixels.
        """
        return F.avg_pool3d(self.last_map(pixels_B3THW), (2, 7, 7), stride=1).flatten(2).transpose(1, 2)
