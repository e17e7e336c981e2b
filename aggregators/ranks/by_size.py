"""Weights over ranks that depend only on the set size, computed per size instead of per set where possible."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polypool.infra.compute.device import shapes_only, traced


def weights_by_size(make: Callable[[Tensor, int], Tensor], mask_BN: Tensor) -> Tensor:
    """Return the weights `(B, N, D)` of the masked sets; undefined beyond a set's size.

    On a CPU, `make` is called with the distinct sizes of the batch. On other devices, where reading sizes would
    synchronise, it is called with all possible sizes, or with each set's size if there are fewer sets. Under tracing it
    is called with each set's size.

    Args:
        make: returns weights `(S, longest, D)` for sizes `(S,)` of at most `longest`.
        mask_BN: True for real elements.
    """
    size_B, padded = mask_BN.sum(dim=1), mask_BN.shape[1]
    if traced() or (shapes_only(mask_BN) and padded > len(size_B)):
        return make(size_B, padded)
    if shapes_only(mask_BN):  # all possible sizes: no more than sets
        size_S = torch.arange(1, padded + 1, device=size_B.device)
        return make(size_S, padded).index_select(0, size_B - 1)
    size_S, set_B = size_B.unique(return_inverse=True)
    weight_SND = make(size_S, int(size_S.max()))
    return torch.nn.functional.pad(weight_SND, (0, 0, 0, padded - weight_SND.shape[1])).index_select(0, set_B)
