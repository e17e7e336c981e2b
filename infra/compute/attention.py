"""Attention in float32 under a CPU's autocast."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@functools.cache
def attend_in_float32() -> torch.library.Library:
    """Compute `scaled_dot_product_attention` in float32 under a CPU's autocast, until the process ends.

    The backward pass of torch's kernel is about ten times slower in bfloat16 than in float32 (torch 2.13). This
    replaces autocast's rule for all callers of the function, including modules of other packages. The result has
    autocast's dtype, as before.
    """
    override = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that its own kernel is replaced
        override.impl("scaled_dot_product_attention", _attend, "AutocastCPU")
    return override  # the rule applies as long as this object exists


def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    dtype = torch.get_autocast_dtype("cpu")
    if query.dtype == torch.float64:  # not affected by autocast
        dtype = torch.float64
    wide = torch.promote_types(dtype, torch.float32)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(wide)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs).to(dtype)
