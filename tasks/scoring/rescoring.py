"""Ranks by normalised scores, which reduce hubness: gallery items that fit many queries are penalised.

With s the score of query q and gallery item g, of one direction:

- Dual softmax, `dsl`: s(q, g) softmax_q(T s(q, g)), the softmax over all queries that are scored together. Cheng et
  al., "Improving video-text retrieval by multi-stream corpus alignment and dual softmax loss" (CAMoE), 2021. A query's
  ranks thus depend on the other queries of the split. The authors' code leaves T open; public evaluations of cosines
  use 100, the scale of CLIP's logits, as here. Their factor, the number of queries, does not change ranks.
- Querybank normalisation, `qbnorm`, with the dynamic inverted softmax: exp(B s(q, g)) / sum_b exp(B s(b, g)) over a
  bank of training queries b, if the best item of q is among the k best of a query in the bank, otherwise s(q, g).
  Bogolin et al., "Cross modal retrieval with querybank normalisation", CVPR 2022; B = 20 and k = 1 as in their code.

Computed in float64, one block of queries at a time. Per direction, each score is computed twice for `dsl` and once for
`qbnorm`. For `qbnorm` the logarithm is ranked, which has the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.tasks.adapter import Score
from polypool.tasks.scoring.metrics import Positives, Ranks, rank_queries
from polypool.tasks.scoring.scores import QueryBank

TEMPERATURE = 100.0
BETA = 20.0
_CHUNK = 1 << 21  # scores that are computed at a time: 16 MB

Rows = Callable[[int, int], Tensor]
"""The `(stop - start, G)` scores of queries `start` to `stop`."""


def rank_rescored(score: Score, of_items: Positives, *, bank: QueryBank | None = None) -> tuple[Ranks, Ranks]:
    """Rank captions for every item, and items for every caption.

    Args:
        score: of items against captions.
        of_items: the right captions of every item.
        bank: training queries for querybank normalisation; None for dual softmax.

    Raises:
        InputError: a score is NaN or, for dual softmax and in a bank, infinite.
    """
    of_captions = of_items.transposed()
    sides = ((score, of_items), (transposed(score), of_captions))
    banks = (
        (None, None)
        if bank is None
        else ((bank.items, bank.sizes[0]), (transposed(bank.captions), bank.sizes[1]))
    )
    ranks = []
    for (between, positives), training, items in zip(sides, banks, ("captions", "items"), strict=True):
        size = len(positives), positives.gallery
        rows = (
            dual_softmax(between, *size)
            if training is None
            else inverted_softmax(between, *training, size[1])
        )
        ranks.append(rank_queries(rows, positives, chunk=_CHUNK, progress=f"ranking {items}"))
    return ranks[0], ranks[1]


def transposed(score: Score) -> Score:
    """Return the transposed score function."""
    return lambda rows, columns: score(columns, rows).T


def dual_softmax(score: Score, queries: int, gallery: int) -> Rows:
    """Return the scores of queries times their softmax over all queries, float64.

    Raises:
        InputError: all scores are negative, so that the product would reverse the ranking.
    """
    sums, best = [], []
    for sim_QG in _blocks(score, queries, gallery):
        sums.append(torch.logsumexp(TEMPERATURE * sim_QG, dim=0))
        best.append(sim_QG.max())
    if torch.stack(best).max() < 0:
        raise InputError(
            "dual softmax multiplies scores by their softmax, and all scores are negative, as those of distributions, "
            "so that the best would become the worst; rescore by a bank of training queries instead (--rescore qbnorm)"
        )
    sum_G = torch.logsumexp(torch.stack(sums), dim=0)

    def rows(start: int, stop: int) -> Tensor:
        sim_QG = score(slice(start, stop), slice(0, gallery)).double()
        return sim_QG * (TEMPERATURE * sim_QG - sum_G).exp()

    return rows


def inverted_softmax(score: Score, bank: Score, size: int, gallery: int) -> Rows:
    """Return the logarithms, over `BETA`, of the queries' scores normalised by a bank, float64.

    Args:
        score: of queries against the gallery.
        bank: of training queries against the gallery.
        size: number of training queries.
        gallery: number of gallery items.
    """
    sums = []
    active_G = torch.zeros(gallery, dtype=torch.bool)
    for sim_BG in _blocks(bank, size, gallery):
        sums.append(torch.logsumexp(BETA * sim_BG, dim=0))
        active_G[sim_BG.argmax(dim=1).cpu()] = True
    offset_G = torch.logsumexp(torch.stack(sums), dim=0) / BETA
    active_G = active_G.to(offset_G.device)

    def rows(start: int, stop: int) -> Tensor:
        sim_QG = score(slice(start, stop), slice(0, gallery)).double()
        return torch.where(active_G[sim_QG.argmax(dim=1), None], sim_QG - offset_G, sim_QG)

    return rows


def _blocks(score: Score, queries: int, gallery: int) -> Iterator[Tensor]:
    """Yield the scores of all queries, block by block, float64."""
    step = max(1, _CHUNK // gallery)
    for start in range(0, queries, step):
        sim_QG = score(slice(start, min(start + step, queries)), slice(0, gallery)).double()
        if not sim_QG.isfinite().all():
            raise InputError(
                "the model gives scores that are no numbers; check the features and the checkpoint: a diverged model "
                "scores like this"
            )
        yield sim_QG
