"""Files of published weights: reading without unpickling, names, and exact loading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polypool.infra.errors import InputError

_SEQUENTIAL = {
    "base.0": "conv1",
    "base.1": "bn1",
    "base.4": "layer1",
    "base.5": "layer2",
    "base.6": "layer3",
    "top.0": "layer4",
}


def read_weights(path: Path) -> dict[str, Any]:
    """Return the content of a file of `torch.save`; only tensors and plain containers are read.

    Raises:
        InputError: no such file, or it is damaged or has other content.
    """
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"no weights at {path}; give the path of the published file") from None
    except Exception as error:  # torch raises anything from RuntimeError to UnpicklingError
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"cannot read the weights {path}: {reason}") from error
    if not isinstance(weights, dict):
        raise InputError(f"the weights {path} are a {type(weights).__name__}, not names with tensors")
    return weights


def resnet_name(name: str) -> str:
    """Return the name in `encoders.visual.resnet` of a parameter of VSE-infinity's backbone, `base.4.0.conv1.weight`.

    Its code (`lib/modules/resnet.py`) keeps stem and first three stages in `base`, the last stage in `top`.
    """
    part, number, rest = [*name.split(".", 2), "", ""][:3]
    place = f"{part}.{number}"
    return f"{_SEQUENTIAL[place]}.{rest}" if place in _SEQUENTIAL else name


def resnet_weights(weights: Mapping[str, Any], *, where: object) -> dict[str, Tensor]:
    """Return the parameters and statistics of a file under the names of `encoders.visual.resnet`.

    Classifier and counters of batch normalisation are left out.

    Args:
        weights: tensors by torchvision's names, or the parts `base` and `top` of VSE-infinity's
            `original_updown_backbone.pth`.
        where: the file, for messages.
    """
    if {"base", "top"} <= weights.keys():
        parts = ("base", "top")
        weights = {
            resnet_name(f"{part}.{key}"): x for part in parts for key, x in dict(weights[part]).items()
        }
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} in {where} is a {type(value).__name__}, not a tensor")
    return {
        name: value
        for name, value in weights.items()
        if not name.startswith("fc.") and not name.endswith(".num_batches_tracked")
    }


def fill(module: nn.Module, weights: Mapping[str, Tensor], *, where: object) -> None:
    """Load weights that must fit a module exactly; an InputError lists differing names and shapes."""
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
