"""No pooling: all elements for late interaction (ColBERT, FILIP), or a few cluster means."""

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
    """The L2-normalised elements of a set as its vectors, for `maxsim`.

    With a `factor` or a `budget` the unit vectors are first clustered by Ward's criterion, and each cluster's mean is
    one vector: n elements give `ceil(n / factor)` vectors, at most `budget`. The clustering has no gradient; the means
    have.

    Sources: Khattab and Zaharia, "ColBERT", SIGIR 2020; Yao et al., "FILIP", ICLR 2022; Clavie, Chaffin and Adams,
    "Reducing the footprint of multi-vector retrieval with minimal performance impact via token pooling", 2024. The
    last pools only at indexing time, into `n // factor + 1` clusters of the rows of the cosine distance matrix; here
    training pools, too, and Ward's distances are between the vectors.

    Args:
        dim: width of the elements.
        factor: elements per remaining vector; 1 keeps all.
        budget: maximum number of vectors; None for no limit.
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
        """Return the elements `(B, N, D)`, or the cluster means `(B, K, D)`; zero vectors fill up smaller sets."""
        x_BND = unit_length(zero_pads(x_BND, mask_BN)).to(x_BND.dtype)
        if self.factor == 1 and self.budget is None:
            return Pooled(x_BND)
        size_B, n = mask_BN.sum(dim=1).double(), x_BND.shape[1]
        target_B = -torch.div(-size_B, self.factor, rounding_mode="floor").long()
        target_B, k = target_B.clamp(max=self.budget or n), self._vectors(n)
        cluster_BN = _ward(x_BND.detach(), mask_BN, target_B, merges=n - k)
        member_BNK = zero_pads(F.one_hot(cluster_BN.clamp(max=k - 1), k).to(x_BND.dtype), mask_BN)
        share_BNK = member_BNK / member_BNK.sum(dim=1, keepdim=True).clamp(min=1)
        return Pooled(share_BNK.mT @ x_BND)

    def _vectors(self, size: int) -> int:
        """Return the number of vectors for a set size; it grows by at most one per element."""
        vectors = -int(-size // self.factor)
        return vectors if self.budget is None else min(vectors, self.budget)


def _ward(x_BND: Tensor, mask_BN: Tensor, target_B: Tensor, *, merges: int) -> Tensor:
    """Return each element's cluster `(B, N)`, numbered from 0 in the order of their first elements.

    Each step merges a set's two nearest clusters and updates distances by the Lance-Williams formula. Non-finite
    elements form separate clusters.

    Args:
        x_BND: unit vectors.
        mask_BN: True for real elements.
        target_B: target number of clusters per set.
        merges: number of steps, the maximum over the sets.
    """
    x_BND = x_BND.double()
    b, n = torch.arange(len(x_BND), device=x_BND.device), x_BND.shape[1]
    apart_NN = ~torch.eye(n, dtype=torch.bool, device=x_BND.device)
    pairs_BNN = mask_BN[:, :, None] & mask_BN[:, None] & apart_NN
    distance_BNN = (1 - x_BND @ x_BND.mT).masked_fill(~pairs_BNN, torch.inf).nan_to_num(torch.inf, torch.inf)
    size_BN, excess_B = mask_BN.double(), mask_BN.sum(dim=1) - target_B
    place_N = torch.arange(n, device=x_BND.device)
    first_BN = place_N.expand(mask_BN.shape).clone()  # first element of each element's cluster
    for step in range(merges):
        least_B, i_B = distance_BNN.amin(dim=2).min(dim=1)
        j_B = distance_BNN[b, i_B].argmin(dim=1)  # i < j: ties go to the first
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
