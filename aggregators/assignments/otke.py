"""The optimal transport kernel embedding, OTKE (Mialon et al., ICLR 2021): elements are carried to references."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts
from polypool.aggregators.assignments.assigning import sinkhorn, unit_length
from polypool.aggregators.masks import zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("otke")
class OTKE(Aggregator):
    """K vectors, each the mean of the elements by what optimal transport carries of them to a learned reference.

    The plan is Sinkhorn's, of the products of elements and references over `eps`: all elements give alike, and all
    references get alike. Elements are of unit length, as they come out of the kernel layer that the paper has before.
    References start at random as in the authors' code, whose start by k-means needs data; several sets of references,
    and positions, are left out. `aligned_mean` compares the vectors one by one.

    Args:
        dim: width of the elements.
        k: number of references and vectors; 30 in the authors' code for sentences.
        eps: how smooth the plan is.
        iterations: of Sinkhorn.
    """

    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int = 8, eps: float = 0.5, iterations: int = 10) -> None:
        super().__init__()
        check_counts(k=k, iterations=iterations)
        if not eps > 0:
            raise InputError(f"eps must be above 0, not {eps}")
        self.num_embeddings, self.eps, self.iterations = k, eps, iterations
        self.reference_KD = nn.Parameter(torch.empty(k, dim).uniform_(-(k**-0.5), k**-0.5))

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, K, D)` vectors, `(B, D)` of one reference, and the weights `(B, K, N)`."""
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
