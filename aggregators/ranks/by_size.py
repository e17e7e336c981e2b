"""Weights over ranks that depend on a set's size alone, made once for each size of a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polypool.infra.compute.device import traced


def weights_by_size(make: Callable[[Tensor, int], Tensor], mask_BN: Tensor) -> Tensor:
    """Return the weights `(B, N, D)` of sets of these masks; undefined beyond a set's size.

    Args:
        make: returns `(S, longest, D)` for S sizes `(S,)` and the longest of them.
        mask_BN: True for real elements.
    """
    size_B, padded = mask_BN.sum(dim=1), mask_BN.shape[1]
    if traced():  # a graph knows no sizes, and has the weights of each set
        return make(size_B, padded)
    size_S, set_B = size_B.unique(return_inverse=True)
    weight_SND = make(size_S, int(size_S.max()))
    return torch.nn.functional.pad(weight_SND, (0, 0, 0, padded - weight_SND.shape[1])).index_select(0, set_B)
