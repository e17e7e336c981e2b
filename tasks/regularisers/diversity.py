"""Elements of a set at right angles (PVSE, Song and Soleymani 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.infra.registry import REGULARISERS
from polypool.tasks.regularisers.regulariser import WithinSets


@REGULARISERS.register("diversity")
class Diversity(WithinSets):
    """The Frobenius norm of each set's Gram matrix less its diagonal, over K^2."""

    name = "diversity"

    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        k = gram_BKK.shape[-1]
        same_KK = torch.eye(k, dtype=torch.bool, device=gram_BKK.device)
        return torch.linalg.matrix_norm(gram_BKK.masked_fill(same_KK, 0.0)).mean() / k**2
