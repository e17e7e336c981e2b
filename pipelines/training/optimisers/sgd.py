"""Stochastic gradient descent with momentum (Sutskever et al., ICML 2013)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from polypool.infra.registry import OPTIMISERS
from polypool.pipelines.training.optimisers.base import Plain


@OPTIMISERS.register("sgd")
class SGD(Plain, torch.optim.SGD):
    """torch's; its weight decay is added to the gradient, and so to the momentum.

    Args:
        params: weights, or groups of them.
        lr: learning rate.
        weight_decay: factor of the weights in the gradient.
        momentum: of the sum of gradients.
        nesterov: look ahead along the momentum.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.9,
        nesterov: bool = False,
    ) -> None:
        # not fused: torch's kernel cannot take in a weight whose gradient comes after those of others
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov)
