"""A transformer over a sequence, then the mean: seqTransf of CLIP4Clip (Luo et al., Neurocomputing 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import check_heads
from polypool.aggregators.masks import masked_mean, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("sequential")
class Sequential(Aggregator):
    """Elements with position embeddings pass through self-attention layers with an outer residual connection.

    The layers are CLIP's: pre-norm, with an MLP four times as wide. The sum of element and output is L2-normalised
    before the mean. Deviations: the published model is initialised from the first layers and positions of CLIP's text
    encoder, here with CLIP's random initialisation; elements beyond the last position share its embedding.

    Args:
        dim: width of the elements; `heads` must divide it.
        layers: number of transformer layers.
        heads: attention heads; CLIP has one per 64 channels.
        positions: number of position embeddings.
    """

    symmetric = False

    def __init__(self, dim: int, *, layers: int = 4, heads: int = 8, positions: int = 77) -> None:
        super().__init__()
        check_counts(layers=layers, positions=positions)
        check_heads(dim, heads)
        self.position_PD = nn.Parameter(0.01 * torch.randn(positions, dim))
        self.layers = nn.ModuleList(_Layer(dim, heads=heads, layers=layers) for _ in range(layers))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the means `(B, D)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        place_BN = (mask_BN.long().cumsum(dim=1) - 1).clamp(min=0, max=len(self.position_PD) - 1)
        y_BND = x_BND + nn.functional.embedding(place_BN, self.position_PD)
        for layer in self.layers:
            y_BND = layer(y_BND, mask_BN)
        unit_BND = nn.functional.normalize(x_BND + y_BND, dim=-1, eps=1e-6)
        return Pooled(masked_mean(unit_BND, mask_BN))


class _Layer(nn.Module):
    """Pre-norm residual attention and MLP."""

    def __init__(self, dim: int, *, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(dim, eps=1e-12), nn.LayerNorm(dim, eps=1e-12)
        self.query_key_value, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        inner, last = dim**-0.5, dim**-0.5 * (2 * layers) ** -0.5
        for linear, deviation in (
            (self.query_key_value, inner),
            (self.out, last),
            (self.up, (2 * dim) ** -0.5),
            (self.down, last),
        ):
            nn.init.normal_(linear.weight, std=deviation)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the elements `(B, N, D)`; padding is never attended to."""
        split_BND = self.query_key_value(self.norm(x_BND)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in split_BND)
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask_BN[:, None, None, :]
        )
        x_BND = x_BND + self.out(attended.transpose(1, 2).flatten(2))
        hidden = self.up(self.norm_mlp(x_BND))
        return x_BND + self.down(hidden * (1.702 * hidden).sigmoid())  # CLIP's approximation of GELU
