"""Embeddings of both modalities alike as a whole: maximum mean discrepancy (Gretton et al. 2006; PVSE, DivE)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import REGULARISERS
from polypool.tasks.regularisers.regulariser import Regulariser
from polypool.tasks.similarities.vectors import Embeddings


@REGULARISERS.register("mmd")
class MMD(Regulariser):
    """The squared discrepancy of all elements of one modality's embeddings from all of the other's, a V-statistic.

    The kernel is exp(-gamma * distance), not of the distance squared: so in the embeddings of PVSE and DivE.

    Args:
        weight: of the term in the loss.
        gamma: sharpness of the kernel.
    """

    name = "mmd"

    def __init__(self, *, weight: float, gamma: float = 0.5) -> None:
        super().__init__(weight=weight)
        if not gamma > 0:
            raise InputError(f"gamma must be above 0, not {gamma}")
        self.gamma = gamma

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the mean kernel within each modality less twice that between them, a scalar."""
        x_MD, y_ND = (encoded.vectors.reshape(-1, encoded.vectors.shape[-1]) for encoded in (visual, text))
        return self._kernel(x_MD, x_MD) - 2 * self._kernel(x_MD, y_ND) + self._kernel(y_ND, y_ND)

    def _kernel(self, x_MD: Tensor, y_ND: Tensor) -> Tensor:
        return (-self.gamma * distances(x_MD, y_ND)).exp().mean()


def distances(x_MD: Tensor, y_ND: Tensor) -> Tensor:
    """Return the Euclidean distances `(M, N)`, by way of a matrix product: nothing larger is made.

    A distance below what the product can resolve (0.002 between unit vectors in single precision) counts as zero and
    has zero gradient, where that of the root has no bound.
    """
    square_M, square_N = x_MD.square().sum(dim=1), y_ND.square().sum(dim=1)
    scale_MN = square_M[:, None] + square_N
    square_MN = scale_MN - 2 * x_MD @ y_ND.T
    zero_MN = square_MN <= 16 * torch.finfo(square_MN.dtype).eps * scale_MN
    return square_MN.masked_fill(zero_MN, 1.0).sqrt().masked_fill(zero_MN, 0.0)
