"""AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from polypool.infra.registry import OPTIMISERS
from polypool.pipelines.training.optimisers.base import Plain


@OPTIMISERS.register("adamw")
class AdamW(Plain, torch.optim.AdamW):
    """torch's; without weight decay it is Adam.

    Args:
        params: weights, or groups of them.
        lr: learning rate.
        weight_decay: taken off every weight, times the learning rate.
        beta1: of the mean of gradients.
        beta2: of the mean of their squares.
        eps: added to the root of the latter.
        amsgrad: divide by the largest second moment so far (Reddi et al. 2018), as PVSE does.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            weight_decay=weight_decay,
            betas=(beta1, beta2),
            eps=eps,
            amsgrad=amsgrad,
            fused=True,
        )
