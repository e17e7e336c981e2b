"""LAPS (Fu et al., CVPR 2024): patches relevant to a text are merged to a few, the others to one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context, Pooled, check_counts
from polypool.aggregators.masks import masked_mean, softmax_over_elements, zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("laps")
class LAPS(Aggregator):
    """The elements nearest to the text and to the set's mean are merged to k vectors, the others to one more.

    As in the released code. An element's score is its cosine with the set's mean plus its cosine with the mean of the
    text's elements. The highest-scored elements are merged to k vectors, each by a softmax over them of an MLP; the
    others to one, by a softmax of their scores. The selection has no gradient, as in the code; the weights of the other
    elements have one here. The paper's learned score and its sparsity loss are not in that code and are omitted. The
    share of selected elements is relative to each set's size instead of a fixed number, and the CLS token is not
    treated separately. If all elements are selected, the last vector is 0.

    Args:
        dim: width of the elements and of the text's.
        k: number of vectors, without the merged others; 39 for 196 patches with the code's settings.
        ratio: share of the elements to keep, rounded up.
    """

    context = "set"
    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8, ratio: float = 0.5) -> None:
        super().__init__()
        check_counts(k=k)
        if not 0 < ratio <= 1:
            raise InputError(f"ratio must be above 0 and at most 1, not {ratio}")
        self.num_embeddings, self.ratio = k + 1, ratio
        hidden = max(1, dim // 5)
        self.weight = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, k, bias=False)
        )
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, context: Context) -> Pooled:
        """Return vectors `(B, K + 1, D)` and weights `(B, K + 1, N)`, the others last.

        With all pairs, `(Q, G, K + 1, ...)`.

        A text changes only weights, so every set's elements are projected once for all texts.
        """
        x_BND = zero_pads(x_BND, mask_BN)
        score_BGN = self._scores(x_BND, mask_BN, context)
        real_B1N = mask_BN[:, None]
        selected_BGN = self._selected(score_BGN, real_B1N)
        logit_B1KN = (self.weight(x_BND) * self.scale).transpose(1, 2)[:, None]
        others_BGN = real_B1N & ~selected_BGN
        weight_BGMN = torch.cat(
            (
                softmax_over_elements(
                    logit_B1KN.expand(-1, selected_BGN.shape[1], -1, -1), selected_BGN[:, :, None]
                ),
                _shares(score_BGN, others_BGN)[:, :, None].to(logit_B1KN.dtype),
            ),
            dim=2,
        )
        vectors = (weight_BGMN.flatten(1, 2).to(x_BND.dtype) @ x_BND).unflatten(1, weight_BGMN.shape[1:3])
        if context.all_pairs:
            return Pooled(vectors, weights=weight_BGMN)
        return Pooled(vectors.squeeze(1), weights=weight_BGMN.squeeze(1))

    def _scores(self, x_BND: Tensor, mask_BN: Tensor, context: Context) -> Tensor:
        """Return every element's score for each text, `(B, G, N)`; without all pairs G is 1."""
        assert context.mask is not None  # the context is a set
        text_GD = masked_mean(zero_pads(context.x, context.mask), context.mask)
        own_BD = masked_mean(x_BND, mask_BN)
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        unit_BND, text_GD, own_BD = (
            nn.functional.normalize(part.to(wide), dim=-1) for part in (x_BND, text_GD, own_BD)
        )
        text_BGD = text_GD.expand(x_BND.shape[0], -1, -1) if context.all_pairs else text_GD[:, None]
        return (text_BGD + own_BD[:, None]) @ unit_BND.transpose(1, 2)

    def _selected(self, score_BGN: Tensor, real_B1N: Tensor) -> Tensor:
        """Return the mask of the highest-scored elements, `(B, G, N)` bool."""
        count_B11 = (real_B1N.sum(dim=-1, keepdim=True) * self.ratio).ceil()
        order_BGN = score_BGN.masked_fill(~real_B1N, float("-inf")).argsort(
            dim=-1, descending=True, stable=True
        )
        return (order_BGN.argsort(dim=-1) < count_B11) & real_B1N


def _shares(score_BGN: Tensor, others_BGN: Tensor) -> Tensor:
    """Return the softmax of the scores over the masked elements; 0 elsewhere, and everywhere for an empty mask."""
    any_BG1 = others_BGN.any(dim=-1, keepdim=True)
    return softmax_over_elements(score_BGN, others_BGN | ~any_BG1) * any_BG1
