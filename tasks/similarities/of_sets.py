"""Similarities of sets without padding: all sets of one side have the same size."""

from __future__ import annotations

from functools import reduce
from itertools import combinations

import torch
from torch import Tensor, nn

from polypool.infra.compute.device import shapes_only
from polypool.infra.errors import InputError
from polypool.infra.fields import above, require
from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.blocks import SetSimilarity, as_sets
from polypool.tasks.similarities.similarity import Similarity


@SIMILARITIES.register("chamfer")
class Chamfer(SetSimilarity):
    """The mean over elements of the maximum cosine with the other set, averaged over both directions.

    Source: DivE, section 3.3.
    """

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        return (cosine_QKLG.amax(dim=2).mean(dim=1) + cosine_QKLG.amax(dim=1).mean(dim=1)) / 2


FAINT = (
    -80.0
)  # logarithm of the smallest sum in full precision: float32 loses digits below -87, with a margin


@SIMILARITIES.register("smooth_chamfer")
class SmoothChamfer(SetSimilarity):
    """Chamfer similarity with `log(sum(exp(alpha * cosine))) / alpha` for the maximum (DivE, equation 6).

    It can exceed one: two sets of K equal elements score 1 + ln(K) / alpha.

    Args:
        alpha: sharpness of the maximum; the limit is `chamfer`.
    """

    def __init__(self, *, alpha: float = 16.0) -> None:
        super().__init__()
        require(above(0), alpha=alpha)
        self.factor = alpha

    def combine(self, scaled_QKLG: Tensor) -> Tensor:
        """Return the mean of both directions, `(Q, G)`; `scaled_QKLG` is overwritten.

        The cosines are shifted by the largest one of the two sets, so that one exponential serves both directions, in
        fewer passes over memory than `logsumexp`. If alpha or the embeddings are so large that the exponentials of an
        element could vanish, and on accelerators, where that check would synchronise, `_apart` computes the scores.
        """
        top_QG = scaled_QKLG.detach().amax((1, 2))
        exp_QKLG = (scaled_QKLG - top_QG[:, None, None]).exp_()
        rows_QKG, columns_QLG = (exp_QKLG.sum(dim).log() for dim in (2, 1))
        if shapes_only(scaled_QKLG) or torch.minimum(rows_QKG.amin(), columns_QLG.amin()) < FAINT:
            del exp_QKLG
            return self._apart(scaled_QKLG)
        return (rows_QKG.mean(dim=1) + columns_QLG.mean(dim=1)).add_(top_QG, alpha=2) / (2 * self.factor)

    def _apart(self, scaled_QKLG: Tensor) -> Tensor:
        """Compute the same scores with each element shifted by its own largest cosine.

        No exponential overflows, and every element has at least one that does not vanish.
        """
        top_QK1G, top_Q1LG = (scaled_QKLG.detach().amax(dim, keepdim=True) for dim in (2, 1))
        rows_QKG = (scaled_QKLG - top_QK1G).exp_().sum(dim=2).log().add_(top_QK1G.squeeze(2))
        columns_QLG = scaled_QKLG.sub_(top_Q1LG).exp_().sum(dim=1).log().add_(top_Q1LG.squeeze(1))
        return (rows_QKG.mean(dim=1) + columns_QLG.mean(dim=1)) / (2 * self.factor)


@SIMILARITIES.register("mil")
class MIL(SetSimilarity):
    """The maximum cosine between elements of both sets (PVSE, Song and Soleymani 2019)."""

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        return cosine_QKLG.amax(dim=2).amax(dim=1)


LARGEST = (
    8  # elements of a set that is assigned one to one: the dynamic program visits up to 2^LARGEST subsets
)


@SIMILARITIES.register("max_match")
class MaxMatch(SetSimilarity):
    """The mean cosine of the best one-to-one assignment of both sets' elements (Alomari et al., ACL 2025, MaxMatch).

    The assignment is exact, found by dynamic programming over the subsets of the larger set, for all pairs of sets at
    once; elements of the larger set that are left over do not count. The gradient goes to the assigned pairs.

    The authors have published no code. Deviations: `exponential` follows others' code of the method, and the assignment
    then maximises the sum of exponentials, not of cosines; the paper ranks by the highest pairs, here the score of the
    assignment is also used for ranking.

    Args:
        exponential: score an assigned pair by exp(cosine) - 1.
    """

    def __init__(self, *, exponential: bool = False) -> None:
        super().__init__()
        self.exponential = exponential

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        """Return the means over the smaller set's elements, `(Q, G)`.

        Raises:
            InputError: a set has more than eight elements.
        """
        if cosine_QKLG.shape[1] > cosine_QKLG.shape[2]:
            cosine_QKLG = cosine_QKLG.transpose(1, 2)
        _, k, l, _ = cosine_QKLG.shape  # noqa: E741
        if l > LARGEST:
            raise InputError(
                f"max_match assigns sets of at most {LARGEST} elements, and a set has {l}; give the aggregator a "
                "smaller k, or choose smooth_chamfer, chamfer or mil"
            )
        score_QKLG = cosine_QKLG.expm1() if self.exponential else cosine_QKLG
        best: dict[tuple[int, ...], Tensor] = {(column,): score_QKLG[:, 0, column] for column in range(l)}
        for row in range(1, k):
            best = {
                taken: reduce(
                    torch.maximum,
                    (best[taken[:i] + taken[i + 1 :]] + score_QKLG[:, row, taken[i]] for i in range(row + 1)),
                )
                for taken in combinations(range(l), row + 1)
            }
        return reduce(torch.maximum, best.values()) / k


@SIMILARITIES.register("match_probability")
class MatchProbability(SetSimilarity):
    """The mean of `sigmoid(scale * cosine + shift)` over all pairs of elements; scale and shift are learned.

    DivE's paper writes a sum; its code, and PCME, take the mean.

    Args:
        scale: initial value.
        shift: initial value.
    """

    def __init__(self, *, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.shift = nn.Parameter(torch.tensor(float(shift)))

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        return (self.scale * cosine_QKLG + self.shift).sigmoid().mean(dim=(1, 2))


@SIMILARITIES.register("aligned_mean")
class AlignedMean(Similarity):
    """The mean cosine of elements at equal positions; both sets must have equally many.

    Source: score attention with k queries (Stefanini et al. 2020).
    """

    of_sets = True

    def forward(self, query: Tensor, gallery: Tensor) -> Tensor:
        """Return the means `(Q, G)`: one product of the sets flattened to long vectors."""
        query_QKD, gallery_GKD = _aligned(query, gallery)
        return (query_QKD.flatten(1) @ gallery_GKD.flatten(1).T).div_(query_QKD.shape[1])

    def pairs(self, query: Tensor, gallery: Tensor) -> Tensor:
        query_PKD, gallery_PKD = _aligned(query, gallery)
        return (query_PKD * gallery_PKD).sum(dim=-1).mean(dim=1)


def _aligned(query: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    sets = as_sets(query, gallery)
    k, l = (x.shape[1] for x in sets)  # noqa: E741
    if k != l:
        raise InputError(
            f"aligned_mean pairs the k-th element with the k-th, and sets have {k} elements on one side and {l} on the "
            "other; give both aggregators the same k, or choose smooth_chamfer, chamfer, max_match, mil or "
            "match_probability"
        )
    return sets
