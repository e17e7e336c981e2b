"""SimPool (Psomas et al., "Keep It SimPool", ICCV 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_mean, softmax_over_elements, zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("simpool")
class SimPool(Aggregator):
    """Single-head attention with the mean of the elements as query; the vector is the weighted mean.

    The query is a linear map of the elements' mean, keys are a linear map of the layer-normalised elements, and values
    are the layer-normalised elements. This is the default of the authors' code, and its setting for probing frozen
    transformers.

    With `gamma` (in their training 2 for convolutional networks, 1.25 for transformers) the result is a power mean of
    the shifted values: (sum_n a_n (v_n - min v + eps)^gamma)^(1 / gamma). The code takes the minimum over the batch;
    here it is taken over the set, as in the paper's formula, so that batch mates do not change a result. The code's
    optional learned offset, equal for all channels, is omitted.

    Args:
        dim: width of the elements.
        gamma: exponent of the power mean; None for the mean.
    """

    def __init__(self, dim: int, *, gamma: float | None = None) -> None:
        super().__init__()
        if gamma is not None and not gamma > 0:
            raise InputError(f"gamma must be above 0, or None, not {gamma}")
        self.gamma, self.eps = gamma, 1e-6
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return means `(B, D)` and weights `(B, N)`; powers are computed in float32 at least."""
        x_BND = zero_pads(x_BND, mask_BN)
        asked_BD = self.query(masked_mean(x_BND, mask_BN)) * x_BND.shape[-1] ** -0.5 @ self.key.weight
        value_BND = self.norm(x_BND)
        weight_BN = softmax_over_elements(torch.einsum("bd,bnd->bn", asked_BD, value_BND), mask_BN)
        if self.gamma is None:
            return Pooled(torch.einsum("bn,bnd->bd", weight_BN, value_BND), weights=weight_BN)
        wide_BND = value_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
        least_B11 = wide_BND.masked_fill(~mask_BN[..., None], float("inf")).amin(dim=(1, 2), keepdim=True)
        power_BND = (wide_BND - least_B11).clamp(min=0).add(self.eps) ** self.gamma
        mean_BD = torch.einsum("bn,bnd->bd", weight_BN.to(power_BND.dtype), zero_pads(power_BND, mask_BN))
        return Pooled((mean_BD ** (1 / self.gamma)).to(x_BND.dtype), weights=weight_BN)
