"""The few names of Flax and JAX that recorded code uses, computed by torch; the caller gives the layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

PACKAGES = ("absl", "absl.logging", "flax", "flax.linen", "jax", "jax.numpy", "jax.nn", "ml_collections")


class Module:
    """A module whose annotated attributes are set by keyword."""

    def __init__(self, *, name: str = "", **attributes: Any) -> None:
        vars(self).update(attributes)


def dropout(**_: Any) -> Callable[..., Tensor]:
    """Return a dropout that drops nothing, as at evaluation."""
    return lambda x, deterministic: x


def give(layers: Iterator[nn.Module]) -> None:
    """Fill the empty packages that replace Flax and JAX.

    Args:
        layers: layers with parameters, in the order in which the code creates them.
    """
    linen, numpy = sys.modules["flax.linen"], sys.modules["jax.numpy"]
    vars(linen).update(
        Module=Module,
        compact=lambda method: method,
        LayerNorm=lambda: next(layers),
        Dense=lambda width, **_: next(layers),
        Dropout=dropout,
        gelu=nn.functional.gelu,
    )
    vars(numpy).update(reshape=torch.reshape, transpose=torch.permute, einsum=torch.einsum)
    sys.modules["jax.nn"].softmax = lambda x, axis: x.softmax(dim=axis)
