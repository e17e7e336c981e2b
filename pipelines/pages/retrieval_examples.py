"""Examples of retrieval: a few queries of both directions with the best that was found for them, and the right one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pipelines.pages.examples import choose
from tasks.scoring.metrics import Positives
from tasks.scoring.scores import Score

HITS = 5


@dataclass(frozen=True, kw_only=True)
class RankedQueries:
    """The queries of a split that were ranked, and what is right in the whole of it.

    Attributes:
        caption_G: the captions of the gallery, as places in the split, ascending.
        of_items: the right captions of each item of the split, as places in `caption_G`.
        of_captions: the right items of each caption in `caption_G`.
        item_Q, item_rank_Q: the items that were ranked, and their 0-based ranks; NaN where nothing is right.
        caption_Q, caption_rank_Q: the captions that were ranked, as places in the split, and their ranks.
    """

    caption_G: np.ndarray
    of_items: Positives
    of_captions: Positives
    item_Q: np.ndarray
    item_rank_Q: np.ndarray
    caption_Q: np.ndarray
    caption_rank_Q: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Hit:
    """What was found: the number of an item or a caption in the split, its place from 1, its score."""

    number: int
    rank: int
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class Example:
    """A query and what was found for it.

    Attributes:
        query: the number of a caption or an item in the split.
        hits: the best, in order; the first of those with equal scores is the first of the split.
        best: the best right one, which may be among them.
        right: how many right ones there are.
    """

    query: int
    hits: tuple[Hit, ...]
    best: Hit
    right: int


def find_examples(score: Score, queries: RankedQueries, *, count: int) -> tuple[list[Example], list[Example]]:
    """Return up to `count` captions that look for items, and as many items that look for captions.

    Half of them are right: something right came first where they were ranked. What they find is found in the whole
    split, a row or a column of scores at a time. Every worker makes the same calls of the score.

    Args:
        score: of blocks of the split.
        queries: the queries to choose from, and what is right.
        count: how many of each direction.
    """
    items, captions = len(queries.of_items), int(queries.caption_G[-1]) + 1
    number_N = np.arange(items)
    of_captions = [
        _example(
            query,
            score(slice(0, items), slice(query, query + 1))[:, 0],
            queries.of_captions,
            at=int(np.searchsorted(queries.caption_G, query)),
            number_G=number_N,
        )
        for query in _chosen(queries.caption_Q, queries.caption_rank_Q, among=queries.caption_G, count=count)
    ]
    of_items = [
        _example(
            query,
            score(slice(query, query + 1), slice(0, captions))[0, queries.caption_G],
            queries.of_items,
            at=query,
            number_G=queries.caption_G,
        )
        for query in _chosen(queries.item_Q, queries.item_rank_Q, among=number_N, count=count)
    ]
    return of_captions, of_items


def _chosen(query_Q: np.ndarray, rank_Q: np.ndarray, *, among: np.ndarray, count: int) -> list[int]:
    kept_Q = np.isfinite(rank_Q) & np.isin(query_Q, among)
    query_Q, rank_Q = query_Q[kept_Q], rank_Q[kept_Q]
    return [int(query_Q[number]) for number in choose(rank_Q == 0, count=count)]


def _example(query: int, score_G: Tensor, positives: Positives, *, at: int, number_G: np.ndarray) -> Example:
    """Return what query number `at` of `positives` found in a gallery of these numbers."""
    score_G = score_G.double().cpu().numpy()
    right_P = positives.item_P[positives.start_Q1[at] : positives.start_Q1[at + 1]]

    def hit(place: int, rank: int) -> Hit:
        return Hit(
            number=int(number_G[place]), rank=rank, score=float(score_G[place]), right=place in right_P
        )

    order = np.argsort(-score_G, kind="stable")[:HITS].tolist()
    best = int(right_P[np.argmax(score_G[right_P])])
    above = np.count_nonzero(score_G > score_G[best]) + np.count_nonzero(score_G[:best] == score_G[best])
    return Example(
        query=query,
        hits=tuple(hit(place, rank) for rank, place in enumerate(order, start=1)),
        best=hit(best, 1 + above),
        right=len(right_P),
    )
