"""ESA: External Space Attention Aggregation for Image-Text Retrieval (Zhu et al., TCSVT 2023, and its code)."""

from __future__ import annotations

from torch import Tensor, nn

from polypool.aggregators.averages.weighted import WeightedSum
from polypool.aggregators.masks import masked_softmax
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("esa")
class ESA(WeightedSum):
    """A mean in which every value weighs by the exponential of a linear map of its element, one channel at a time.

    The map starts from Xavier's uniform weights. It has no bias, which no softmax sees. The paper's self-expanding loss
    pools each training set twice, each time without a fifth of the elements drawn at random, and lets the worse of both
    count; an aggregator makes a set's vectors once, so of this the augmentation `drop` gives one draw.

    Args:
        dim: width of the elements.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, dim, bias=False)
        nn.init.xavier_uniform_(self.score.weight)

    def weigh(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the `(B, N, D)` weights: each channel's softmax of the scores."""
        return masked_softmax(self.score(x_BND), mask_BN)
