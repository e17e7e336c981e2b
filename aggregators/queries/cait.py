"""Class attention of CaiT (Touvron et al., ICCV 2021): layers of attention that change the token alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import Attention, mlp, truncated_normal, with_token
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("cait")
class CaiT(Aggregator):
    """A learned token attends to itself and the elements, layer by layer, and its layer norm is the vector.

    Each layer adds to the token its attention to the normed token and elements, and then an MLP of its norm, both
    multiplied by learned weights of each channel (LayerScale) that start small. Two layers, as in the paper. These
    weights start from 0.1, which the paper gives for shallow networks; its deep ones have 1e-5 and 1e-6. Keys have no
    bias, which no softmax sees.

    Args:
        dim: width of the elements, which `heads` must divide.
        layers: of class attention.
        heads: of each attention; the published models have one for 48 channels.
        scale: what the weights of LayerScale start from.
    """

    def __init__(self, dim: int, *, layers: int = 2, heads: int = 8, scale: float = 0.1) -> None:
        super().__init__()
        check_counts(layers=layers)
        self.token_D = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim), std=0.02))
        self.layers = nn.ModuleList(ClassAttention(dim, heads=heads, scale=scale) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, D)` tokens and the `(B, N)` weights of the elements in the last layer."""
        x_BND = zero_pads(x_BND, mask_BN)
        token_B1D = self.token_D.expand(x_BND.shape[0], 1, -1)
        for layer in self.layers:
            token_B1D, weight_BN = layer(token_B1D, x_BND, mask_BN)
        return Pooled(self.norm(token_B1D.squeeze(1)), weights=weight_BN)


class ClassAttention(nn.Module):
    """A transformer's block of which the token's row alone is computed.

    Args:
        dim: width of token and elements.
        heads: of the attention.
        scale: what LayerScale starts from; there is none where None.
    """

    def __init__(self, dim: int, *, heads: int, scale: float | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.attention = Attention(dim, heads=heads)
        self.norm_mlp = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = mlp(dim)
        if scale is not None:
            self.scale_2D = nn.Parameter(torch.full((2, dim), scale))
        truncated_normal(self)

    def forward(self, token_B1D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed tokens `(B, 1, D)` and the elements' weights `(B, N)`, the mean over heads."""
        all_BMD, mask_BM = with_token(token_B1D, x_BND, mask_BN)
        normal_BMD = self.norm(all_BMD)
        got_B1D, weight_B1M = self.attention(normal_BMD[:, :1], normal_BMD, mask_BM)
        token_B1D = token_B1D + self._scaled(got_B1D, 0)
        token_B1D = token_B1D + self._scaled(self.mlp(self.norm_mlp(token_B1D)), 1)
        return token_B1D, weight_B1M[:, 0, 1:]

    def _scaled(self, x_B1D: Tensor, part: int) -> Tensor:
        return self.scale_2D[part] * x_B1D if hasattr(self, "scale_2D") else x_B1D
