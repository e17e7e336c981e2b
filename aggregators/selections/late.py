"""No pooling: every element remains, for late interaction (ColBERT, FILIP), or few means of those that are alike."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.assignments.assigning import unit_length
from polypool.aggregators.averages.weighted import zero_pads
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
        cluster_BN = self._clusters(x_BND.detach(), mask_BN)
        member_BNK = F.one_hot(cluster_BN, int(cluster_BN.max()) + 1).to(x_BND.dtype)
        member_BNK = zero_pads(member_BNK, mask_BN)
        share_BNK = member_BNK / member_BNK.sum(dim=1, keepdim=True).clamp(min=1)
        return Pooled(share_BNK.mT @ x_BND)

    def _clusters(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the number of each element's cluster, from 0, `(B, N)`."""
        real_BN = mask_BN.cpu().numpy()
        cluster_BN = np.zeros(real_BN.shape, dtype=np.int64)
        sets = x_BND.double().cpu().numpy()
        for x_ND, real_N, cluster_N in zip(sets, real_BN, cluster_BN, strict=True):
            cluster_N[real_N] = _ward(x_ND[real_N], self._kept(int(real_N.sum())))
        return torch.from_numpy(cluster_BN).to(x_BND.device)

    def _kept(self, size: int) -> int:
        """Return how many vectors remain of so many elements."""
        kept = -int(-size // self.factor)
        return kept if self.budget is None else min(kept, self.budget)


def _ward(x_ND: np.ndarray, clusters: int) -> np.ndarray:
    """Return the cluster of each vector, `(N,)`, from 0; of equal distances fewer clusters may come."""
    if clusters >= len(x_ND) or not np.isfinite(x_ND).all():
        return np.arange(len(x_ND))
    label_N = fcluster(linkage(x_ND, method="ward"), t=clusters, criterion="maxclust")
    return np.unique(label_N, return_inverse=True)[1]
