"""Elements of a set far from each other (DivE, section 3.4; its code's `unif`)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.infra.registry import REGULARISERS
from polypool.tasks.regularisers.regulariser import WithinSets


@REGULARISERS.register("uniformity")
class Uniformity(WithinSets):
    """The mean of exp(-2 d^2) over the pairs of each set's elements, d their distance.

    The paper sums over pairs; what its code averages is what the published weight goes with.
    """

    name = "uniformity"

    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        k = gram_BKK.shape[-1]
        first_P, second_P = torch.triu_indices(k, k, offset=1, device=gram_BKK.device)
        square_BK = gram_BKK.diagonal(dim1=1, dim2=2)
        distance_BP = square_BK[:, first_P] + square_BK[:, second_P] - 2 * gram_BKK[:, first_P, second_P]
        return (-2 * distance_BP).exp().mean()
