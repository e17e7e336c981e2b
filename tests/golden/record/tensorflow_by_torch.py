"""The few functions of TensorFlow 1 that recorded code calls, computed by torch, with variables from a torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


def tensorflow(module: nn.Module, layers: Sequence[nn.Module]) -> SimpleNamespace:
    """Return `tf`, whose variables are the parameters of `module` with the same names.

    Args:
        module: has the variables, and batch norms named after their scopes.
        layers: linear layers, in the order in which the code creates them.
    """
    asked = iter(layers)

    def fully_connected(x: Tensor, width: int, *, activation_fn: Callable | None, **_: Any) -> Tensor:
        y = next(asked)(x)
        return y if activation_fn is None else activation_fn(y)

    def batch_norm(x: Tensor, *, scope: str, **_: Any) -> Tensor:
        return getattr(module, scope)(x)

    def l2_normalize(x: Tensor, axis: int) -> Tensor:
        return x * x.square().sum(dim=axis, keepdim=True).clamp(min=1e-12).rsqrt()

    return SimpleNamespace(
        slim=SimpleNamespace(
            fully_connected=fully_connected, batch_norm=batch_norm, variance_scaling_initializer=lambda: None
        ),
        get_variable=lambda name, shape, initializer: getattr(module, name),
        reshape=torch.reshape,
        matmul=torch.matmul,
        multiply=torch.mul,
        subtract=torch.sub,
        expand_dims=torch.unsqueeze,
        transpose=lambda x, perm: x.permute(perm),
        reduce_sum=lambda x, axis, keep_dims: x.sum(dim=axis, keepdim=keep_dims),
        nn=SimpleNamespace(
            sigmoid=torch.sigmoid, softmax=lambda x, axis: x.softmax(dim=axis), l2_normalize=l2_normalize
        ),
        summary=SimpleNamespace(histogram=lambda *_: None),
    )


def imports_of_youtube8m() -> ModuleType:
    """Return the names that the models of YouTube-8M import with a star."""
    module = ModuleType("frame_level_models")
    silent = SimpleNamespace(DEFINE_integer=lambda *_: None, DEFINE_float=lambda *_: None)
    module.flags, module.models = silent, SimpleNamespace(BaseModel=object)
    module.tf = module.slim = None
    return module
