"""Scores of sets against sets, block by block: exact, in the memory of one block, in training too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Score = Callable[[Tensor, Tensor], Tensor]
"""Takes `(q, K, D)` and `(L, g, D)`, returns `(q, g)`, differentiable."""

VECTORS = {"cpu": (1024, 1024)}
"""Vectors of queries and of the gallery in a block: on a CPU a few MB, which stay in its cache."""
VECTORS_ELSEWHERE = (4096, 8192)


def in_blocks(score: Score, query_QKD: Tensor, gallery_GLD: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the `(Q, G)` scores of sets of K vectors against sets of L.

    Args:
        score: scores a block.
        query_QKD: sets of one modality.
        gallery_GLD: sets of the other.
        parameters: what `score` uses beside its arguments and needs a gradient.
    """
    return _Blocks.apply(score, query_QKD, gallery_GLD, *parameters)


class _Blocks(torch.autograd.Function):
    """Backward computes every block again rather than keep what it held."""

    @staticmethod
    def forward(
        ctx: Any, score: Score, query_QKD: Tensor, gallery_GLD: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.score = score
        ctx.save_for_backward(query_QKD, gallery_GLD, *parameters)
        sim_QG = query_QKD.new_empty(len(query_QKD), len(gallery_GLD))
        for columns in _slices(gallery_GLD, 1):
            gallery_LGD = elements_first(gallery_GLD[columns])
            for rows in _slices(query_QKD, 0):
                sim_QG[rows, columns] = score(query_QKD[rows], gallery_LGD)
        return sim_QG

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_QG: Tensor) -> tuple[Tensor | None, ...]:
        query_QKD, gallery_GLD, *parameters = ctx.saved_tensors
        total = [torch.zeros_like(x) for x in (query_QKD, gallery_GLD, *parameters)]
        for columns in _slices(gallery_GLD, 1):
            for rows in _slices(query_QKD, 0):
                with torch.enable_grad():
                    query = query_QKD[rows].detach().requires_grad_()
                    gallery = gallery_GLD[columns].detach().requires_grad_()
                    sim_QG = ctx.score(query, elements_first(gallery))
                parts = torch.autograd.grad(sim_QG, (query, gallery, *parameters), grad_QG[rows, columns])
                places = (total[0][rows], total[1][columns], *total[2:])
                for place, part in zip(places, parts, strict=True):
                    place += part
        return None, *total


def elements_first(gallery_GLD: Tensor) -> Tensor:
    """Return `(L, G, D)`, contiguous: sums over a set's elements then run over whole rows of scores."""
    return gallery_GLD.transpose(0, 1).contiguous()


def _slices(x_BKD: Tensor, side: int) -> Iterator[slice]:
    """Cut the sets of one side of a block."""
    step = max(1, VECTORS.get(x_BKD.device.type, VECTORS_ELSEWHERE)[side] // x_BKD.shape[1])
    return (slice(start, start + step) for start in range(0, len(x_BKD), step))
