"""Latent attention pooling of NV-Embed (Lee et al., ICLR 2025, section 3.1, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.masks import masked_mean, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("latent_attention")
class LatentAttention(Aggregator):
    """Every element attends to a dictionary of learned latents; an MLP and the mean follow.

    Attention and MLP are pre-norm and residual; the MLP is gated by GELU. Latents first pass through each head's key
    map and its transposed query map, and through its value map and its slice of the output map. By associativity the
    result is the same, and no element is mapped to the total width of all heads (8 x `dim` by default).

    Args:
        dim: width of the elements.
        latents: size of the dictionary.
        heads: attention heads.
        head_width: width of each head; `dim` if None, as in the published models.
    """

    def __init__(
        self, dim: int, *, latents: int = 512, heads: int = 8, head_width: int | None = None
    ) -> None:
        super().__init__()
        head_width = dim if head_width is None else head_width
        check_counts(latents=latents, heads=heads, head_width=head_width)
        width = heads * head_width
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.norm, self.norm_latents, self.norm_inner = (nn.LayerNorm(dim) for _ in range(3))
        self.query = nn.Linear(dim, width, bias=False)
        self.key_value = nn.Linear(dim, 2 * width, bias=False)
        self.out = nn.Linear(width, dim, bias=False)
        self.widen, self.narrow = nn.Linear(dim, 8 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        attended_BND = x_BND + self._attend(self.norm(x_BND))
        inner_BNF, gate_BNF = self.widen(self.norm_inner(attended_BND)).chunk(2, dim=-1)
        return Pooled(masked_mean(attended_BND + self.narrow(inner_BNF * gelu(gate_BNF)), mask_BN))

    def _attend(self, x_BND: Tensor) -> Tensor:
        """Return the elements' attention outputs over the latents, `(B, N, D)`."""
        key_LHE, value_LHE = (
            part.unflatten(-1, (self.heads, -1))
            for part in self.key_value(self.norm_latents(self.latents)).chunk(2, dim=-1)
        )
        query_HED = self.query.weight.unflatten(0, (self.heads, -1))
        key_HLD = torch.einsum("lhe,hed->hld", key_LHE, query_HED) * key_LHE.shape[-1] ** -0.5
        value_HLD = torch.einsum("lhe,dhe->hld", value_LHE, self.out.weight.unflatten(1, (self.heads, -1)))
        score_BNHL = torch.einsum("bnd,hld->bnhl", x_BND, key_HLD)
        wide = torch.promote_types(score_BNHL.dtype, torch.float32)
        weight_BNHL = score_BNHL.to(wide).softmax(dim=-1).to(value_HLD.dtype)
        return torch.einsum("bnhl,hld->bnd", weight_BNHL, value_HLD)
