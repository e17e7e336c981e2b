"""Similarities of sets, computed in blocks: all cosines between two sets' elements, combined to one score."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polypool.tasks.similarities.similarity import Similarity

# Computes `(q, g)` scores, differentiably, from `(q, K, L, g)` products, which it may overwrite, and the slices of the
# block's queries and gallery.
Combine = Callable[[Tensor, slice, slice], Tensor]

# Vectors of queries and of the gallery in a block: on a CPU the products are a few MB, which stay in its cache.
VECTORS = {"cpu": (1024, 1024)}
VECTORS_ELSEWHERE = (4096, 8192)
# Factor on the queries of a block whose gallery is a single set, such as the text of a search for images.
NARROW = 16
# Maximum number of products saved for the backward pass, 128 MB; if there are more, it recomputes every block.
STORED = 1 << 25


def in_blocks(
    combine: Combine,
    query_QKD: Tensor,
    gallery_GLD: Tensor,
    parameters: Sequence[Tensor],
    *,
    factor: float = 1.0,
) -> Tensor:
    """Return the scores `(Q, G)` of sets of K vectors against sets of L.

    Args:
        combine: computes scores from the products of a block.
        query_QKD: sets of one modality.
        gallery_GLD: sets of the other.
        parameters: tensors with gradient that `combine` uses.
        factor: multiplies the products, at no cost within them.
    """
    learned = (query_QKD, gallery_GLD, *parameters)
    products = math.prod(query_QKD.shape[:2]) * math.prod(gallery_GLD.shape[:2])
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in learned) and products <= STORED
    return _Blocks.apply(combine, factor, keep, *learned)


class _Blocks(torch.autograd.Function):
    """Saves the products for the backward pass, or recomputes them if there are many; all else is recomputed."""

    @staticmethod
    def forward(
        ctx: Any,
        combine: Combine,
        factor: float,
        keep: bool,
        query_QKD: Tensor,
        gallery_GLD: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.combine, ctx.factor, ctx.parameters = combine, factor, len(parameters)
        saved: list[Tensor] = []
        sim_QG = query_QKD.new_empty(len(query_QKD), len(gallery_GLD))
        for rows, columns, gallery_LGD in _blocks(query_QKD, gallery_GLD):
            scaled_QKLG = _products(query_QKD[rows], gallery_LGD, factor)
            if keep:
                saved.append(scaled_QKLG.clone())
            sim_QG[rows, columns] = combine(scaled_QKLG, rows, columns)
        ctx.save_for_backward(query_QKD, gallery_GLD, *parameters, *saved)
        return sim_QG

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_QG: Tensor) -> tuple[Tensor | None, ...]:
        query_QKD, gallery_GLD, *others = ctx.saved_tensors
        parameters, saved = others[: ctx.parameters], iter(others[ctx.parameters :])
        total = [torch.zeros_like(x) for x in (query_QKD, gallery_GLD, *parameters)]
        for rows, columns, gallery_LGD in _blocks(query_QKD, gallery_GLD):
            block_QKD, scaled_QKLG = query_QKD[rows], next(saved, None)
            if scaled_QKLG is None:
                scaled_QKLG = _products(block_QKD, gallery_LGD, ctx.factor)
            with torch.enable_grad():
                scaled_QKLG = scaled_QKLG.detach().requires_grad_()
                sim_QG = ctx.combine(scaled_QKLG.clone(), rows, columns)
            grad_QKLG, *of_parameters = torch.autograd.grad(
                sim_QG, (scaled_QKLG, *parameters), grad_QG[rows, columns]
            )
            grad_VW = ctx.factor * grad_QKLG.flatten(2).flatten(0, 1)
            total[0][rows] += (grad_VW @ gallery_LGD.flatten(0, 1)).view_as(block_QKD)
            grad_LGD = (grad_VW.T @ block_QKD.flatten(0, 1)).view_as(gallery_LGD)
            total[1][columns] += grad_LGD.transpose(0, 1)
            for place, part in zip(total[2:], of_parameters, strict=True):
                place += part
        return None, None, None, *total


def _blocks(query_QKD: Tensor, gallery_GLD: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the slices of both sides of each block, and the gallery's sets.

    These are `(L, g, D)`, contiguous, so that sums over a set's elements run over whole rows of scores.
    """
    of_queries, of_gallery = VECTORS.get(query_QKD.device.type, VECTORS_ELSEWHERE)
    for columns in _slices(gallery_GLD, of_gallery):
        gallery_LGD = gallery_GLD[columns].transpose(0, 1).contiguous()
        for rows in _slices(query_QKD, of_queries * (NARROW if gallery_LGD.shape[1] == 1 else 1)):
            yield rows, columns, gallery_LGD


def _products(query_QKD: Tensor, gallery_LGD: Tensor, factor: float) -> Tensor:
    """Return the products of all elements times the factor, `(q, K, L, g)`; q is innermost in memory if g is 1."""
    query_VD, gallery_WD = query_QKD.flatten(0, 1), gallery_LGD.flatten(0, 1)
    scaled_VW = torch.addmm(query_VD.new_zeros(()), query_VD, gallery_WD.T, beta=0, alpha=factor)
    scaled_QKLG = scaled_VW.view(*query_QKD.shape[:2], *gallery_LGD.shape[:2])
    if scaled_QKLG.shape[3] > 1:
        return scaled_QKLG
    return scaled_QKLG.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)


def _slices(x_BKD: Tensor, vectors: int) -> Iterator[slice]:
    step = max(1, vectors // x_BKD.shape[1])
    return (slice(start, start + step) for start in range(0, len(x_BKD), step))


class SetSimilarity(Similarity):
    """A similarity of sets, `(Q, K, D)` and `(G, L, D)`; an embedding `(Q, D)` is a set of one."""

    of_sets = True
    factor: float = 1.0
    """Factor on the cosines before they are combined, at no cost within the product."""

    @abstractmethod
    def combine(self, scaled_QKLG: Tensor) -> Tensor:
        """Return the scores `(Q, G)` from the elements' scaled cosines, which it may overwrite."""

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the scores `(Q, G)`, computed block by block, as is the gradient."""
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]

        def combine(scaled_QKLG: Tensor, rows: slice, columns: slice) -> Tensor:
            return self.combine(scaled_QKLG)

        return in_blocks(combine, *as_sets(query, gallery), learned, factor=self.factor)

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_PKD, gallery_PLD = as_sets(query, gallery)
        return self.combine((self.factor * query_PKD @ gallery_PLD.mT)[..., None]).squeeze(1)


def as_sets(query: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    """Return embeddings, `(Q, D)` or `(Q, K, D)` and `(G, D)` or `(G, L, D)`, as `(Q, K, D)` and `(G, L, D)`."""
    query, gallery = (x if x.ndim == 3 else x[:, None] for x in (query, gallery))
    return query, gallery
