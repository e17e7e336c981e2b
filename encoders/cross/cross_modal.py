"""Cross-attention of two modalities, then self-attention (Stefanini et al., ICPR 2020, section III-B)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.encoders.encoder import xavier_linear
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import CROSS_ENCODERS


@CROSS_ENCODERS.register("cross_modal")
class CrossModal(nn.Module):
    """Cross-attention of each modality to the other, then self-attention of each, in every layer.

    Both cross-attentions of a layer read the layer's input. As in the paper, layers have no feed-forward part.

    Args:
        width: width D of the elements of both modalities.
        heads: number of attention heads.
        layers: number of layers; one in the paper.
        dropout: dropout rate of the attention outputs.
        cls: prepend a learned element to each set, for the aggregator `cls` (section IV-C).
    """

    def __init__(
        self, width: int, *, heads: int = 8, layers: int = 1, dropout: float = 0.1, cls: bool = False
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"a width of {width} cannot be shared evenly by {heads} heads")
        if layers < 1:
            raise ValueError(f"layers must be at least 1, not {layers}")
        self.layers = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(layers))
        self.cls_2D = nn.Parameter(torch.randn(2, width) / width**0.5) if cls else None

    def forward(
        self, v_BND: Tensor, v_mask_BN: Tensor, t_BMD: Tensor, t_mask_BM: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return each set after attention, `(B, N, D)` and `(B, M, D)`, followed by its mask.

        Sets must not be empty. With `cls`, returned sets have one element more, their first.
        """
        # zeros under the masks: an attention weight of 0 times NaN is NaN
        v_BND = v_BND.masked_fill(~v_mask_BN[..., None], 0.0)
        t_BMD = t_BMD.masked_fill(~t_mask_BM[..., None], 0.0)
        if self.cls_2D is not None:
            v_BND, v_mask_BN = _put_first(self.cls_2D[0], v_BND, v_mask_BN)
            t_BMD, t_mask_BM = _put_first(self.cls_2D[1], t_BMD, t_mask_BM)
        for layer in self.layers:
            v_BND, t_BMD = layer(v_BND, v_mask_BN, t_BMD, t_mask_BM)
        return v_BND, v_mask_BN, t_BMD, t_mask_BM


def _put_first(element_D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Prepend a real element to each set."""
    first_B1D = element_D.to(x_BND.dtype).expand(len(x_BND), 1, -1)
    return torch.cat((first_B1D, x_BND), dim=1), F.pad(mask_BN, (1, 0), value=True)


class _Layer(nn.Module):
    """One cross-attention and one self-attention for each modality, with separate weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.v_cross, self.t_cross, self.v_self, self.t_self = (
            MultiHeadAttention(width, heads=heads, dropout=dropout) for _ in range(4)
        )

    def forward(
        self, v_BND: Tensor, v_mask_BN: Tensor, t_BMD: Tensor, t_mask_BM: Tensor
    ) -> tuple[Tensor, Tensor]:
        v_BND, t_BMD = self.v_cross(v_BND, t_BMD, t_mask_BM), self.t_cross(t_BMD, v_BND, v_mask_BN)
        return self.v_self(v_BND, v_BND, v_mask_BN), self.t_self(t_BMD, t_BMD, t_mask_BM)


class MultiHeadAttention(nn.Module):
    """`LayerNorm(x + dropout(attention))` with multi-head scaled dot-product attention."""

    def __init__(self, width: int, *, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (xavier_linear(width, width) for _ in range(4))
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BND: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        """Return the elements of `x_BND` after attention to the real elements of `context_BMD`, `(B, N, D)`."""
        query, key, value = (
            project(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, source in ((self.query, x_BND), (self.key, context_BMD), (self.value, context_BMD))
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=context_mask_BM[:, None, None])
        return self.norm(x_BND + self.dropout(self.out(attended.transpose(1, 2).flatten(-2))))
