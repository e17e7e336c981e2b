"""NetVLAD (Arandjelovic et al., CVPR 2016): what elements differ by from centres they are softly assigned to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("netvlad")
class NetVLAD(Aggregator):
    """K vectors of unit length: sums of the elements less a centre, weighed by their assignment to it (Eq. 4).

    Elements are of unit length, and an element's assignment is a softmax over the centres of a linear map. The paper
    lays the vectors, each normalised, one behind the other: `aligned_mean` of these K compares as that does; its map to
    fewer numbers by PCA is left out. It starts centres from k-means and the map from 2 alpha c and -alpha |c|^2 with
    an alpha, about 100, that makes assignments nearly hard. Here, without data, centres start at random directions, and
    alpha is sqrt(D), so that scores of elements in random directions have a deviation of 2.

    A vector is computed as the weighted mean less the centre, which has the direction of the weighted sum of
    differences and stays exact where a centre gets next to nothing.

    Args:
        dim: width of the elements.
        k: number of centres and vectors; 64 in the paper.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8) -> None:
        super().__init__()
        check_counts(k=k)
        self.num_embeddings = k
        self.assign = nn.Linear(dim, k)
        self.centre_KD = nn.Parameter(nn.functional.normalize(torch.randn(k, dim), dim=-1))
        alpha = dim**0.5
        with torch.no_grad():
            self.assign.weight.copy_(2 * alpha * self.centre_KD)
            self.assign.bias.copy_(-alpha * self.centre_KD.square().sum(dim=-1))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, K, D)` vectors, `(B, D)` of one centre, and the assignments `(B, K, N)`.

        Those of an element sum to one over the centres.
        """
        unit_BND = unit_length(zero_pads(x_BND, mask_BN))
        logit_BNK = nn.functional.linear(
            unit_BND, self.assign.weight.to(unit_BND.dtype), self.assign.bias.to(unit_BND.dtype)
        )
        log_BNK = logit_BNK.log_softmax(dim=-1)
        mean_BKD = masked_softmax(log_BNK, mask_BN).transpose(1, 2) @ unit_BND
        vectors = unit_length(mean_BKD - self.centre_KD).to(x_BND.dtype)
        weight_BKN = zero_pads(log_BNK.exp(), mask_BN).transpose(1, 2)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
