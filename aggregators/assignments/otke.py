"""Optimal transport kernel embedding, OTKE (Mialon et al., ICLR 2021): elements are transported to references."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import sinkhorn, unit_length
from polypool.aggregators.masks import zero_pads
from polypool.infra.fields import above, require
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("otke")
class OTKE(Aggregator):
    """K vectors, each the mean of the elements weighted by the mass transported to a learned reference.

    The Sinkhorn plan of the dot products of elements and references over `eps` has uniform marginals. Elements are
    L2-normalised, as the paper's kernel layer before this one returns them. References start at random, an option of
    the authors' code; its k-means initialisation needs data. Several sets of references and position encodings are
    omitted. `aligned_mean` compares the vectors one by one.

    Args:
        dim: width of the elements.
        k: number of references and vectors; 30 in the authors' code for sentences.
        eps: entropic regularisation; larger values give a smoother plan.
        iterations: Sinkhorn iterations.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8, eps: float = 0.5, iterations: int = 10) -> None:
        super().__init__()
        check_counts(k=k, iterations=iterations)
        require(above(0), eps=eps)
        self.num_embeddings, self.eps, self.iterations = k, eps, iterations
        self.reference_KD = nn.Parameter(torch.empty(k, dim).uniform_(-(k**-0.5), k**-0.5))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return vectors `(B, K, D)`, or `(B, D)` if K is 1, and weights `(B, K, N)`."""
        unit_BND = unit_length(zero_pads(x_BND, mask_BN))
        score_BKN = self.reference_KD.to(unit_BND.dtype) @ unit_BND.transpose(1, 2) / self.eps
        count_B = mask_BN.sum(dim=1).to(unit_BND.dtype)
        weight_BKN = sinkhorn(
            score_BKN,
            mask_BN,
            mass_BK=torch.ones_like(score_BKN[..., 0]),
            mass_B=len(self.reference_KD) / count_B,
            iterations=self.iterations,
            elements_last=False,
        )
        vectors = (weight_BKN @ unit_BND).to(x_BND.dtype)
        return Pooled(vectors.squeeze(1) if self.num_embeddings == 1 else vectors, weights=weight_BKN)
