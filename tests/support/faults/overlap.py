"""A similarity from outside the package, named by tests as `overlap:Overlap`."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.tasks.similarities.similarity import Similarity


class Overlap(Similarity):
    """The mean product over all pairs of elements."""

    of_sets = True

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        query, gallery = (x if x.ndim == 3 else x[:, None] for x in (query, gallery))
        return torch.einsum("qkd,gld->qg", query, gallery) / query.shape[1] / gallery.shape[1]
