"""Shared parts of assignments: vectors of unit length, and optimal transport by Sinkhorn's iterations."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_length(x: Tensor) -> Tensor:
    """Return vectors along the last axis divided by their length, in float32 at least; those of length 0 stay."""
    return torch.nn.functional.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def sinkhorn(
    score_BKN: Tensor,
    mask_BN: Tensor,
    *,
    mass_BK: Tensor,
    mass_B: Tensor,
    iterations: int,
    elements_last: bool,
) -> Tensor:
    """Return a transport plan `(B, K, N)`, exponentials of the scores scaled by rows and columns, 0 in the pads.

    Centres and elements are scaled to their masses in turn, in the logarithm and in float32 at least. Those that are
    last meet their masses exactly, the others the better the more iterations.

    Args:
        score_BKN: of every centre and element; values in the padding must be finite.
        mask_BN: True for real elements.
        mass_BK: what each centre gets, above 0.
        mass_B: what each real element of a set gives, above 0.
        iterations: how often both are scaled.
        elements_last: whether a turn ends with the elements, or with the centres.
    """
    score_BKN = score_BKN.to(torch.promote_types(score_BKN.dtype, torch.float32))
    real_BKN = score_BKN.masked_fill(~mask_BN[:, None], float("-inf"))
    log_BK1, log_B11 = mass_BK.log()[..., None], mass_B.log()[:, None, None]
    centre_BK1, element_B1N = torch.zeros_like(score_BKN[:, :, :1]), torch.zeros_like(score_BKN[:, :1])
    for turn in range(2 * iterations):
        if (turn % 2 == 1) == elements_last:
            element_B1N = log_B11 - (score_BKN + centre_BK1).logsumexp(dim=1, keepdim=True)
        else:
            centre_BK1 = log_BK1 - (real_BKN + element_B1N).logsumexp(dim=2, keepdim=True)
    return (real_BKN + centre_BK1 + element_B1N).exp()
