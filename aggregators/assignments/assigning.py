"""L2 normalisation and Sinkhorn iterations, for the aggregators of this folder."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_length(x: Tensor) -> Tensor:
    """L2-normalise along the last axis, in float32 at least; zero vectors stay zero."""
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
    """Return an optimal transport plan `(B, K, N)` by Sinkhorn iterations, 0 in the padding.

    Rows (centres) and columns (elements) are rescaled to their marginals in turn, in log space and in float32 at least.
    The side that is rescaled last matches its marginals exactly; the other converges with the number of iterations.

    Args:
        score_BKN: log affinity of every centre and element; values in the padding must be finite.
        mask_BN: True for real elements.
        mass_BK: marginal of each centre, above 0.
        mass_B: marginal of each real element of a set, above 0.
        iterations: number of row and column updates.
        elements_last: whether an iteration ends with the elements or with the centres.
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
