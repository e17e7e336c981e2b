"""Class attention of CaiT (Touvron et al., ICCV 2021): transformer layers that update the class token only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import Attention, init_linear, mlp, with_token
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("cait")
class CaiT(Aggregator):
    """A learned token attends to itself and the elements in each layer; its final layer norm is the vector.

    Each layer adds pre-norm attention and a pre-norm MLP to the token, both scaled per channel (LayerScale). Two
    layers, as in the paper. LayerScale starts at 0.1, the paper's value for shallow networks; its deep ones use 1e-5
    and 1e-6. Keys have no bias, because the softmax would cancel it.

    Args:
        dim: width of the elements; `heads` must divide it.
        layers: class-attention layers.
        heads: attention heads; the published models have one per 48 channels.
        scale: initial value of LayerScale.
    """

    def __init__(self, dim: int, *, layers: int = 2, heads: int = 8, scale: float = 0.1) -> None:
        super().__init__()
        check_counts(layers=layers)
        self.token_D = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim), std=0.02))
        self.layers = nn.ModuleList(ClassAttention(dim, heads=heads, scale=scale) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the tokens `(B, D)` and the elements' weights in the last layer `(B, N)`."""
        x_BND = zero_pads(x_BND, mask_BN)
        token_B1D = self.token_D.expand(x_BND.shape[0], 1, -1)
        for layer in self.layers:
            token_B1D, weight_BN = layer(token_B1D, x_BND, mask_BN)
        return Pooled(self.norm(token_B1D.squeeze(1)), weights=weight_BN)


class ClassAttention(nn.Module):
    """A transformer block that computes only the token's row.

    Args:
        dim: width of token and elements.
        heads: attention heads.
        scale: initial value of LayerScale; no LayerScale if None.
    """

    def __init__(self, dim: int, *, heads: int, scale: float | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.attention = Attention(dim, heads=heads)
        self.norm_mlp = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = mlp(dim)
        if scale is not None:
            self.scale_2D = nn.Parameter(torch.full((2, dim), scale))
        init_linear(self, weight=lambda weight: nn.init.trunc_normal_(weight, std=0.02))

    def forward(self, token_B1D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updated tokens `(B, 1, D)` and the elements' weights `(B, N)`, averaged over heads."""
        all_BMD, mask_BM = with_token(token_B1D, x_BND, mask_BN)
        normal_BMD = self.norm(all_BMD)
        got_B1D, weight_B1M = self.attention(normal_BMD[:, :1], normal_BMD, mask_BM)
        token_B1D = token_B1D + self._scaled(got_B1D, 0)
        token_B1D = token_B1D + self._scaled(self.mlp(self.norm_mlp(token_B1D)), 1)
        return token_B1D, weight_B1M[:, 0, 1:]

    def _scaled(self, x_B1D: Tensor, part: int) -> Tensor:
        return self.scale_2D[part] * x_B1D if hasattr(self, "scale_2D") else x_B1D
