"""No pooling: every element remains, for late interaction (ColBERT, FILIP), or few means of those that are alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.masks import zero_pads
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("late")
class Late(Aggregator):
    """The elements of a set, each of unit length, as its vectors: what `maxsim` compares one by one.

    With a `factor` or a `budget` the elements are first clustered, by Ward's criterion on their unit vectors, and each
    cluster is one vector, the mean of its elements: of n elements `ceil(n / factor)` remain, and at most `budget`. How
    they are clustered has no gradient; the means have.

    Sources: Khattab and Zaharia, "ColBERT", SIGIR 2020; Yao et al., "FILIP", ICLR 2022; Clavie, Chaffin and Adams,
    "Reducing the footprint of multi-vector retrieval with minimal performance impact via token pooling", 2024. They
    pool when an index is made, and `n // factor + 1` clusters of rows of the matrix of cosine distances; here training
    pools, too, and Ward's distances are those of the vectors.

    Args:
        dim: width of the elements.
        factor: elements for each vector that remains; 1 for all.
        budget: vectors that remain at most; None for no bound.
    """

    num_embeddings = None

    def __init__(self, dim: int, *, factor: float = 1.0, budget: int | None = None) -> None:
        super().__init__()
        if not factor >= 1 or (budget is not None and budget < 1):
            raise InputError(
                f"late(factor={factor}, budget={budget}) keeps no vector, or more than there are: give a factor of at "
                "least 1, and a budget of at least 1 or None"
            )
        self.factor, self.budget = factor, budget

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the `(B, N, D)` elements, or `(B, K, D)` means where they are clustered; the rest are zeros."""
        x_BND = unit_length(zero_pads(x_BND, mask_BN)).to(x_BND.dtype)
        if self.factor == 1 and self.budget is None:
            return Pooled(x_BND)
        sizes = range(x_BND.shape[1] + 1)
        kept_B = torch.tensor([self._kept(size) for size in sizes], device=x_BND.device)[mask_BN.sum(dim=1)]
        k = self._kept(sizes[-1])
        cluster_BN = _ward(x_BND.detach(), mask_BN, kept_B, merges=sizes[-1] - k)
        member_BNK = zero_pads(F.one_hot(cluster_BN.clamp(max=k - 1), k).to(x_BND.dtype), mask_BN)
        share_BNK = member_BNK / member_BNK.sum(dim=1, keepdim=True).clamp(min=1)
        return Pooled(share_BNK.mT @ x_BND)

    def _kept(self, size: int) -> int:
        """Return how many vectors remain of so many elements; of one element more, at most one vector more."""
        kept = -int(-size // self.factor)
        return kept if self.budget is None else min(kept, self.budget)


def _ward(x_BND: Tensor, mask_BN: Tensor, kept_B: Tensor, *, merges: int) -> Tensor:
    """Return the number of each element's cluster, `(B, N)`, from 0 in the order of their first elements.

    Each step merges the two clusters of a set whose distance is least, and updates it by the formula of Lance and
    Williams. Elements that are not finite stay alone.

    Args:
        x_BND: vectors of unit length.
        mask_BN: which are real.
        kept_B: clusters at which a set is finished.
        merges: steps, as many as any set needs.
    """
    x_BND = x_BND.double()
    b, n = torch.arange(len(x_BND), device=x_BND.device), x_BND.shape[1]
    apart_NN = ~torch.eye(n, dtype=torch.bool, device=x_BND.device)
    pairs_BNN = mask_BN[:, :, None] & mask_BN[:, None] & apart_NN
    distance_BNN = (1 - x_BND @ x_BND.mT).masked_fill(~pairs_BNN, torch.inf).nan_to_num(torch.inf, torch.inf)
    size_BN, excess_B = mask_BN.double(), mask_BN.sum(dim=1) - kept_B
    place_N = torch.arange(n, device=x_BND.device)
    first_BN = place_N.expand(mask_BN.shape).clone()  # of the cluster of each element
    for step in range(merges):
        least_B, i_B = distance_BNN.amin(dim=2).min(dim=1)
        j_B = distance_BNN[b, i_B].argmin(dim=1)  # i < j: of equal ones the first is found
        merged_B1 = ((step < excess_B) & least_B.isfinite())[:, None]
        size_i_B1, size_j_B1 = size_BN[b, i_B, None], size_BN[b, j_B, None]
        to_i_BN, to_j_BN = distance_BNN[b, i_B], distance_BNN[b, j_B]
        sum_BN = (
            (size_i_B1 + size_BN) * to_i_BN + (size_j_B1 + size_BN) * to_j_BN - size_BN * least_B[:, None]
        )
        union_BN = (sum_BN / (size_i_B1 + size_j_B1 + size_BN)).where(merged_B1, to_i_BN)
        distance_BNN[b, i_B] = distance_BNN[b, :, i_B] = union_BN
        gone_BN = to_j_BN.masked_fill(merged_B1, torch.inf)
        distance_BNN[b, j_B] = distance_BNN[b, :, j_B] = gone_BN
        size_BN[b, i_B] += (size_j_B1 * merged_B1)[:, 0]
        first_BN = first_BN.where(~(merged_B1 & (first_BN == j_B[:, None])), i_B[:, None])
    number_BN = ((first_BN == place_N) & mask_BN).cumsum(dim=1) - 1
    return number_BN.gather(1, first_BN).clamp(min=0)
