"""ESA: External Space Attention Aggregation for Image-Text Retrieval (Zhu et al., TCSVT 2023, and its code)."""

from __future__ import annotations

from torch import Tensor, nn

from polypool.aggregators.averages.weighted import WeightedSum
from polypool.aggregators.masks import masked_softmax
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("esa")
class ESA(WeightedSum):
    """A mean with per-channel softmax weights; the scores are a linear map of the element.

    The map starts from Xavier's uniform weights and has no bias, because the softmax would cancel it. The paper's
    self-expanding loss pools each training set twice, each time without a random fifth of its elements, and takes the
    worse of both; an aggregator pools a set once, and the augmentation `drop` provides one such draw.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, dim, bias=False)
        nn.init.xavier_uniform_(self.score.weight)

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, N, D)`, a softmax over the elements per channel."""
        return masked_softmax(self.score(x_BND), mask_BN)
