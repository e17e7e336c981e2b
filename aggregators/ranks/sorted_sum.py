"""Weighted sums over each channel's sorted values, shared by the rank aggregators."""

from __future__ import annotations

import importlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from polypool.aggregators.ranks.kernels import native
from polypool.infra.compute.device import traced

PAD = 1 << 31
"""Added to a pad's index, so that it sorts after a NaN with the same bits."""


def sorted_sum(x_BND: Tensor, weight: Tensor, mask_BN: Tensor) -> Tensor:
    """Sort every channel in descending order, and return the sum weighted by rank.

    Exact, and differentiable once in elements and weights; equal values may be ranked in any order. Weights beyond a
    set's size and masked values are ignored. A NaN in a real element makes only its channel NaN. Sums are accumulated
    in float32 at least.

    Args:
        x_BND: the sets' elements, `(B, N, D)` floats; as all sets of an aggregator, they passed `check_sets`.
        weight: over ranks, `(B, N)`, or `(B, N, D)` per channel; B may be 1.
        mask_BN: True for real elements, in any position.

    Returns:
        Sums `(B, D)` in the dtype of the elements.

    Raises:
        ValueError: weights of a wrong shape, or tensors on different devices.
    """
    weight_BNC = (weight if weight.dim() == 3 else weight[..., None]).expand(x_BND.shape[0], -1, -1)
    if weight_BNC.shape[1] != x_BND.shape[1] or weight_BNC.shape[2] not in (1, x_BND.shape[2]):
        raise ValueError(f"weights {tuple(weight.shape)} do not fit sets {tuple(x_BND.shape)}")
    if not x_BND.device == weight.device == mask_BN.device:
        raise ValueError(f"sets on {x_BND.device}, weights on {weight.device} and a mask on {mask_BN.device}")
    wide = torch.promote_types(x_BND.dtype, torch.float32)
    weight_BNC, kernels = weight_BNC.to(wide), _kernels(x_BND, wide)
    if kernels is not None:
        return kernels.SortedSum.apply(x_BND.to(wide), weight_BNC, mask_BN).to(x_BND.dtype)
    return _sorted_sum(x_BND, weight_BNC, mask_BN)


def _sorted_sum(x_BND: Tensor, weight_BNC: Tensor, mask_BN: Tensor) -> Tensor:
    """The implementation in torch; weights have the dtype of the sums."""
    weight_BNC = weight_BNC.masked_fill(~real_ranks(mask_BN)[..., None], 0.0)
    sorted_BDN = _sort_descending(x_BND, mask_BN).to(weight_BNC.dtype)
    return (sorted_BDN * weight_BNC.transpose(1, 2)).sum(dim=2).to(x_BND.dtype)


def sort_descending(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Sort every channel in descending order; return `(B, N, D)` with zeros beyond a set's size.

    Raises:
        ValueError: tensors on different devices.
    """
    if x_BND.device != mask_BN.device:
        raise ValueError(f"sets on {x_BND.device} and a mask on {mask_BN.device}")
    wide = torch.promote_types(x_BND.dtype, torch.float32)
    kernels = _kernels(x_BND, wide)
    if kernels is not None:
        return kernels.SortDescending.apply(x_BND.to(wide), mask_BN).to(x_BND.dtype)
    return _sort_descending(x_BND, mask_BN).transpose(1, 2)


def _kernels(x_BND: Tensor, dtype: torch.dtype) -> ModuleType | None:
    """Return the kernels for these sets on their device; None to use torch."""
    if traced():
        return None
    _, size, dim = x_BND.shape
    if x_BND.device.type == "cpu":
        usable = size <= native.LARGEST and dim >= native.SMALLEST and native.library(dtype) is not None
        return native if usable else None
    if x_BND.device.type != "cuda" or dtype != torch.float32:
        return None
    cuda = triton_kernels()
    return cuda if cuda is not None and size <= cuda.LARGEST else None


@lru_cache
def triton_kernels() -> ModuleType | None:
    """Import the Triton kernels; None without Triton or the C compiler that it needs."""
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        return None
    try:
        return importlib.import_module("polypool.aggregators.ranks.kernels.cuda")
    except ImportError:
        return None


def _sort_descending(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return `(B, D, N)`, sorted along the last axis of a copy: several times faster than along the middle axis."""
    x_BDN = x_BND.transpose(1, 2).contiguous()
    if x_BDN.device.type == "cpu" and x_BDN.dtype != torch.float64 and not traced():
        sorted_BDN = x_BDN.gather(-1, _descending(x_BDN.detach(), mask_BN))
    else:
        x_BDN = x_BDN.masked_fill(~mask_BN[:, None], float("-inf"))
        sorted_BDN = x_BDN.sort(dim=-1, descending=True).values
    return sorted_BDN.masked_fill(~real_ranks(mask_BN)[:, None], 0.0)


def _descending(x_BDN: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the indices `(B, D, N)` that sort the real values in descending order, followed by padding.

    numpy sorts integers several times faster than torch sorts values with indices: each key holds the value's bits, in
    the order of the values, above its index. A NaN without sign bit sorts first, a NaN with it last.
    """
    bits_BDN = x_BDN.float().view(torch.int32)
    order_BDN = (bits_BDN >> 31).bitwise_and_(0x7FFFFFFF).bitwise_not_().bitwise_xor_(bits_BDN)
    order_BDN.masked_fill_(~mask_BN[:, None], torch.iinfo(torch.int32).max)
    place_BN = torch.arange(x_BDN.shape[2]) + (~mask_BN * PAD)
    key_BDN = order_BDN.long().bitwise_left_shift_(32).bitwise_or_(place_BN[:, None])
    rows, threads = key_BDN.flatten(0, 1).numpy(), torch.get_num_threads()
    if threads == 1 or rows.size < native.SMALL:
        rows.sort(axis=-1)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(partial(np.ndarray.sort, axis=-1), np.array_split(rows, threads)))
    return key_BDN.bitwise_and_(PAD - 1)


def real_ranks(mask_BN: Tensor) -> Tensor:
    """Return the mask `(B, N)`, True for ranks below a set's size."""
    return torch.arange(mask_BN.shape[1], device=mask_BN.device) < mask_BN.sum(dim=1, keepdim=True)
