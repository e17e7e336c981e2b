"""Trainable pooling by a Perceiver resampler, of one or all layers (Tang and Yang 2024, arXiv 2409.02727)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import attend
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("perceiver")
class Perceiver(Aggregator):
    """Learned latents attend to the elements; a gated MLP of each latent and the mean of the latents follow.

    Attention and MLP are pre-norm and residual, the MLP is gated by GELU. In `latent_attention`, conversely, elements
    attend to latents. `positions=0` is the paper's pooling of the tokens of the last layer. `positions=L` is its
    multi-layer pooling: the n-th element is the last or mean token of layer n, to which a learned embedding of n is
    added. The published models have a width of 4,096, 768 latents, 32 heads of width 2,048 and 32 layers. The
    authors' code has no masks, and its final L2 norm belongs to the similarity here.

    Args:
        dim: width of the elements.
        latents: number of latents.
        heads: attention heads.
        head_width: width of each head; `dim` / `heads` if None.
        positions: number of position embeddings; elements beyond the last position share its embedding; 0 for none.
    """

    def __init__(
        self,
        dim: int,
        *,
        latents: int = 8,
        heads: int = 8,
        head_width: int | None = None,
        positions: int = 0,
    ) -> None:
        super().__init__()
        check_counts(latents=latents, heads=heads)
        head_width = max(dim // heads, 1) if head_width is None else head_width
        check_counts(head_width=head_width, **({"positions": positions} if positions else {}))
        width = heads * head_width
        self.heads, self.symmetric = heads, not positions
        self.latent_KD = nn.Parameter(torch.randn(latents, dim))
        self.position_LD = nn.Parameter(torch.randn(positions, dim)) if positions else None
        self.norm, self.norm_latents, self.norm_inner = (nn.LayerNorm(dim) for _ in range(3))
        self.query, self.key, self.value = (nn.Linear(dim, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, dim, bias=False)
        self.widen, self.narrow = nn.Linear(dim, 8 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, D)` and weights `(B, N)`, averaged over latents and heads."""
        x_BND = zero_pads(x_BND, mask_BN)
        if self.position_LD is not None:
            position_BN = (mask_BN.long().cumsum(dim=1) - 1).clamp(min=0, max=len(self.position_LD) - 1)
            x_BND = x_BND + embedding(position_BN, self.position_LD)
        got_BKE, weight_BKHN = attend(
            self.query(self.norm_latents(self.latent_KD))[None],
            self.norm(x_BND),
            mask_BN,
            key=self.key,
            value=self.value,
            heads=self.heads,
        )
        latent_BKD = self.latent_KD + self.out(got_BKE)
        inner_BKF, gate_BKF = self.widen(self.norm_inner(latent_BKD)).chunk(2, dim=-1)
        latent_BKD = latent_BKD + self.narrow(inner_BKF * gelu(gate_BKF))
        return Pooled(latent_BKD.mean(dim=1), weights=weight_BKHN.mean(dim=(1, 2)))
