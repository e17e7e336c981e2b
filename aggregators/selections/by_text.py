"""Parameter-free weighting of frames by their cosine with a text (baselines of X-Pool; Bain et al. 2022)."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Context, Pooled, check_counts
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.fields import above, require
from polypool.infra.registry import AGGREGATORS


class ByText(Aggregator):
    """The weighted mean of L2-normalised elements; weights are a function of their cosines with the text's vector."""

    context = "vector"

    @abstractmethod
    def weigh(self, cosine_BKN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the weights `(B, K, N)`, which sum to one and are 0 in the padding."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, context: Context) -> Pooled:
        """Return the means `(B, D)` and weights `(B, N)`; with all pairs, `(Q, G, D)` and `(Q, G, N)`."""
        unit_BND = torch.nn.functional.normalize(zero_pads(x_BND, mask_BN), dim=-1, eps=1e-6)
        text_BD = torch.nn.functional.normalize(context.x, dim=-1, eps=1e-6)
        text_BKD = text_BD.expand(x_BND.shape[0], -1, -1) if context.all_pairs else text_BD[:, None]
        weight_BKN = self.weigh(text_BKD @ unit_BND.transpose(1, 2), mask_BN)
        vectors = weight_BKN @ unit_BND
        if context.all_pairs:
            return Pooled(vectors, weights=weight_BKN)
        return Pooled(vectors.squeeze(1), weights=weight_BKN.squeeze(1))


@AGGREGATORS.register("text_topk")
class TextTopK(ByText):
    """The mean of the k elements nearest to the text (all in smaller sets): top-k pooling in X-Pool's table.

    The authors' code takes the sum, which has the same cosine similarities.

    Args:
        dim: width of the elements and of the text's vector.
        k: number of elements.
    """

    def __init__(self, dim: int, *, k: int = 3) -> None:
        super().__init__()
        check_counts(k=k)
        self.k = k

    def weigh(self, cosine_BKN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return 1 / k for the k largest cosines, 1 / n in sets of n < k elements."""
        cosine_BKN = cosine_BKN.masked_fill(~mask_BN[:, None], float("-inf"))
        nearest_BKM = cosine_BKN.topk(min(self.k, cosine_BKN.shape[-1]), dim=-1).indices
        chosen_BKN = torch.zeros_like(cosine_BKN).scatter(-1, nearest_BKM, 1.0)
        chosen_BKN = chosen_BKN.masked_fill(~mask_BN[:, None], 0.0)
        return chosen_BKN / chosen_BKN.sum(dim=-1, keepdim=True)


@AGGREGATORS.register("text_softmax")
class TextSoftmax(ByText):
    """A mean with softmax weights of the elements' cosines with the text, divided by a temperature.

    The attention pooling in X-Pool's table, and the query scoring of Bain et al., "A CLIP-Hitchhiker's Guide to Long
    Video Retrieval" (2022).

    Args:
        dim: width of the elements and of the text's vector.
        temperature: a small value selects the nearest element, a large one gives the mean; 0.01 in X-Pool's code.
    """

    def __init__(self, dim: int, *, temperature: float = 0.1) -> None:
        super().__init__()
        require(above(0), temperature=temperature)
        self.temperature = temperature

    def weigh(self, cosine_BKN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the softmax of the cosines."""
        return softmax_over_elements(cosine_BKN / self.temperature, mask_BN[:, None])
