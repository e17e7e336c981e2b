"""Masked sums, means and softmax of padded sets."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.infra.compute.device import shapes_only


def zero_pads(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the sets `(B, N, D)` with zeros in the padding; on a CPU, the input unchanged if it has no padding."""
    if not shapes_only(mask_BN) and mask_BN.all():
        return x_BND
    return torch.where(mask_BN[..., None], x_BND, 0.0)  # on CPUs twice as fast as masked_fill


def masked_mean(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the means of the real elements `(B, D)`, summed in float32 at least (float16 overflows at 65,504)."""
    wide = torch.promote_types(x_BND.dtype, torch.float32)
    total_BD = zero_pads(x_BND, mask_BN).sum(dim=1, dtype=wide)
    return (total_BD / mask_BN.sum(dim=1, keepdim=True)).to(x_BND.dtype)


def masked_softmax(score_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Return the softmax over the real elements per channel `(B, N, D)`, 0 in the padding."""
    return torch.where(mask_BN[..., None], score_BND, float("-inf")).softmax(dim=1)


def softmax_over_elements(logit: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the last axis where the broadcast `mask` is True, and 0 elsewhere.

    Computed in float32 at least; the result has the dtype of the logits.
    """
    wide = logit.to(torch.promote_types(logit.dtype, torch.float32))
    return wide.masked_fill(~mask, float("-inf")).softmax(dim=-1).to(logit.dtype)
