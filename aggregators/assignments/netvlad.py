"""NetVLAD (Arandjelovic et al., CVPR 2016): residuals of the elements to softly assigned centres."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("netvlad")
class NetVLAD(Aggregator):
    """K unit vectors, one per centre: the sum of the elements' residuals to it, weighted by soft assignment (Eq. 4).

    Elements are L2-normalised; an element's assignment is a softmax over the centres of a linear map. The paper
    concatenates the K normalised vectors, which `aligned_mean` reproduces as a similarity of K vectors; its PCA
    projection is omitted. The paper initialises the centres by k-means and the map with 2 alpha c and -alpha |c|^2,
    with alpha about 100, which makes assignments nearly hard. Without data, centres start at random directions here,
    and alpha is sqrt(D), so that scores of random directions have a standard deviation of 2.

    A vector is computed as the weighted mean minus the centre. It has the same direction as the weighted sum of
    residuals, and stays exact for a centre with almost no assigned mass.

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
        """Return vectors `(B, K, D)`, or `(B, D)` if K is 1, and assignments `(B, K, N)`, which sum to 1 over K."""
        unit_BND = unit_length(zero_pads(x_BND, mask_BN))
        logit_BNK = nn.functional.linear(
            unit_BND, self.assign.weight.to(unit_BND.dtype), self.assign.bias.to(unit_BND.dtype)
        )
        log_BNK = logit_BNK.log_softmax(dim=-1)
        mean_BKD = masked_softmax(log_BNK, mask_BN).transpose(1, 2) @ unit_BND
        vectors = unit_length(mean_BKD - self.centre_KD).to(x_BND.dtype)
        weight_BKN = zero_pads(log_BNK.exp(), mask_BN).transpose(1, 2)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
