"""Residual networks for fine-tuning with frozen batch statistics, and readers of published weights.

He et al., "Deep residual learning for image recognition", CVPR 2016; Xie et al., "Aggregated residual transformations
for deep neural networks", CVPR 2017. Parameters have torchvision's names; files are read with torch's `weights_only`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.infra.errors import InputError


class FrozenBatchNorm(nn.Module):
    """Batch normalisation by running statistics, also in training; only scale and shift are learned."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return F.batch_norm(
            x_BCHW, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 (with `middle` channels in `groups`) and 1x1 with a shortcut.

    With `caffe` the stride is in the first convolution, as in networks trained in Caffe, instead of the 3x3.
    """

    def __init__(
        self, inputs: int, outputs: int, *, middle: int, groups: int, stride: int, caffe: bool
    ) -> None:
        super().__init__()
        first, second = (stride, 1) if caffe else (1, stride)
        self.conv1 = nn.Conv2d(inputs, middle, 1, first, bias=False)
        self.bn1 = FrozenBatchNorm(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, second, padding=1, groups=groups, bias=False)
        self.bn2 = FrozenBatchNorm(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, bias=False)
        self.bn3 = FrozenBatchNorm(outputs)
        self.downsample = nn.Identity()
        if stride > 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, FrozenBatchNorm(outputs))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = self.bn1(self.conv1(x_BCHW)).relu_()
        y_BCHW = self.bn2(self.conv2(y_BCHW)).relu_()
        y_BCHW = self.bn3(self.conv3(y_BCHW))
        return (y_BCHW + self.downsample(x_BCHW)).relu_()


class ResNet(nn.Module):
    """A residual network without its classifier.

    Residual branches are initialised at zero, so that maps keep their scale without batch statistics.

    Args:
        depths: blocks in each of the four stages.
        base: channels of the stem; the stages have 4, 8, 16 and 32 times as many.
        groups: of the 3x3 convolutions, 32 in ResNeXt-101 32x8d.
        widen: factor on the channels of the 3x3 convolutions, 4 in ResNeXt-101 32x8d.
        caffe: the layout of networks trained in Caffe: strides in the first convolution of a block, and a stem that
            pools without padding and rounds its size up.
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        *,
        base: int = 64,
        groups: int = 1,
        widen: int = 1,
        caffe: bool = False,
    ) -> None:
        super().__init__()
        self.width = 32 * base
        self.conv1 = nn.Conv2d(3, base, 7, 2, padding=3, bias=False)
        self.bn1 = FrozenBatchNorm(base)
        self.pool = nn.MaxPool2d(3, 2, padding=0 if caffe else 1, ceil_mode=caffe)
        inputs = base
        for stage, depth in enumerate(depths):
            planes, blocks = base << stage, []
            for block in range(depth):
                stride = 2 if stage and not block else 1
                blocks.append(
                    Bottleneck(
                        inputs, 4 * planes, middle=widen * planes, groups=groups, stride=stride, caffe=caffe
                    )
                )
                inputs = 4 * planes
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    def forward(self, pixels_B3HW: Tensor) -> Tensor:
        """Return the last map `(B, 32 * base, H / 32, W / 32)`; H and W must be multiples of 32."""
        x_BCHW = self.pool(self.bn1(self.conv1(pixels_B3HW)).relu_())
        for stage in (1, 2, 3, 4):
            x_BCHW = self.get_submodule(f"layer{stage}")(x_BCHW)
        return x_BCHW


_SEQUENTIAL = {
    "base.0": "conv1",
    "base.1": "bn1",
    "base.4": "layer1",
    "base.5": "layer2",
    "base.6": "layer3",
    "top.0": "layer4",
}


def read_weights(path: Path) -> dict[str, Any]:
    """Return the content of a `torch.save` file, restricted to tensors and plain containers.

    Raises:
        InputError: a missing or damaged file, or other content.
    """
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"no weights at {path}; give the path of the published file") from None
    except Exception as error:  # torch raises exceptions from RuntimeError to UnpicklingError
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"cannot read the weights {path}: {reason}") from error
    if not isinstance(weights, dict):
        raise InputError(f"the weights {path} are a {type(weights).__name__}, not names with tensors")
    return weights


def resnet_name(name: str) -> str:
    """Return the name in `ResNet` of a parameter of VSE-infinity's backbone, such as `base.4.0.conv1.weight`.

    Its code (`lib/modules/resnet.py`) keeps the stem and the first three stages in `base`, the last stage in `top`.
    """
    part, number, rest = [*name.split(".", 2), "", ""][:3]
    place = f"{part}.{number}"
    return f"{_SEQUENTIAL[place]}.{rest}" if place in _SEQUENTIAL else name


def resnet_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters and statistics of a file by their names in `ResNet`.

    The classifier and the batch counters of batch normalisation are dropped.

    Args:
        weights: tensors by torchvision's names, or the parts `base` and `top` of VSE-infinity's
            `original_updown_backbone.pth`.
    """
    if {"base", "top"} <= weights.keys():
        parts = ("base", "top")
        weights = {
            resnet_name(f"{part}.{key}"): x for part in parts for key, x in dict(weights[part]).items()
        }
    return {
        name: value
        for name, value in weights.items()
        if not name.startswith("fc.") and not name.endswith(".num_batches_tracked")
    }


def fill(module: nn.Module, weights: Mapping[str, Any], *, where: object) -> None:
    """Load weights that must match a module exactly.

    Args:
        module: the module.
        weights: parameters and statistics by name.
        where: the file, for messages.

    Raises:
        InputError: an entry is not a tensor, or names or shapes differ, which it lists.
    """
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} in {where} is a {type(value).__name__}, not a tensor")
    own = module.state_dict()
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in sorted(own.keys() & weights.keys())
        if own[name].shape != weights[name].shape
    ]
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or unexpected or shapes:
        raise InputError(
            f"the weights {where} belong to another architecture: missing {_few(missing)}; unexpected "
            f"{_few(unexpected)}; other shapes {_few(shapes)}"
        )
    module.load_state_dict(weights)


def _few(names: Iterable[str], *, most: int = 6) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
