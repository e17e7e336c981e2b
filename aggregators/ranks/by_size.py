"""Weights over ranks that depend only on the set size, computed once per distinct size in a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polypool.infra.compute.device import shapes_only, traced


def weights_by_size(make: Callable[[Tensor, int], Tensor], mask_BN: Tensor) -> Tensor:
    """Return the weights `(B, N, D)` of the masked sets; undefined beyond a set's size.

    Args:
        make: returns weights `(S, longest, D)` for sizes `(S,)` and their maximum `longest`.
        mask_BN: True for real elements.
    """
    size_B, padded = mask_BN.sum(dim=1), mask_BN.shape[1]
    if traced() or (shapes_only(mask_BN) and padded > len(size_B)):
        return make(size_B, padded)
    if shapes_only(mask_BN):  # the weights of all sizes: fewer than those of all sets
        size_S = torch.arange(1, padded + 1, device=size_B.device)
        return make(size_S, padded).index_select(0, size_B - 1)
    size_S, set_B = size_B.unique(return_inverse=True)
    weight_SND = make(size_S, int(size_S.max()))
    return torch.nn.functional.pad(weight_SND, (0, 0, 0, padded - weight_SND.shape[1])).index_select(0, set_B)
