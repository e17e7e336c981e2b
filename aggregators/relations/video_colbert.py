"""Frames and temporally encoded frames for late interaction (Video-ColBERT, Reddy et al., CVPR 2025)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.attention import check_heads
from polypool.aggregators.masks import zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("video_colbert")
class TwoLevels(Aggregator):
    """No pooling: the elements, and the outputs of a transformer over the elements and learned expansion tokens.

    Vectors alternate between the two levels, which the similarity `mms` compares separately: elements at even indices,
    outputs at odd ones, the outputs of the expansion tokens last. Zero vectors pad both levels to the same number of
    vectors. The paper compares all tokens of a text with each level, and trains a loss for each:
    `--aggregator video_colbert --text-aggregator late --similarity mms --model video_colbert`.

    The authors have not released code; this follows a public implementation (Seyanliu/Video-ColBERT): post-norm layers
    with ReLU and without position embeddings. Omitted are its dropout, the initialisation from the first layers of
    CLIP's text encoder, and query expansion, padding tokens that the text encoder encodes with the text.

    Args:
        dim: width of the elements; `heads` must divide it.
        layers: number of transformer layers.
        heads: attention heads.
        hidden: inner width of the layers' MLPs, as a multiple of `dim`.
        expansion: number of expansion tokens.
    """

    num_embeddings = None

    def __init__(
        self, dim: int, *, layers: int = 4, heads: int = 8, hidden: int = 4, expansion: int = 2
    ) -> None:
        super().__init__()
        check_counts(layers=layers, hidden=hidden, expansion=expansion)
        check_heads(dim, heads)
        self.expansion_ED = nn.Parameter(0.02 * torch.randn(expansion, dim))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, hidden * dim, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, 2 (N + E), D)`, for E expansion tokens."""
        x_BND, more = zero_pads(x_BND, mask_BN), len(self.expansion_ED)
        y_BMD = torch.cat((x_BND, self.expansion_ED.expand(len(x_BND), -1, -1).to(x_BND.dtype)), dim=1)
        real_BM = pad(mask_BN, (0, more), value=True)
        for layer in self.layers:
            y_BMD = zero_pads(layer(y_BMD, src_key_padding_mask=~real_BM), real_BM)
        return Pooled(torch.stack((pad(x_BND, (0, 0, 0, more)), y_BMD), dim=2).flatten(1, 2))
