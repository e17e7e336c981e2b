"""Ranks, recall and chance level of retrieval, from scores that need not all exist at once.

A query may have several right answers; its rank is that of the best placed one, as in SCAN, VSE++ and
VSE-infinity. Unlike there, ties are settled by a rule instead of by the order of an unstable sort, and
scores that are not numbers are an error instead of a first place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress

KS = (1, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Positives:
    """The right answers of every query: those of query q are `item_P[start_Q1[q] : start_Q1[q + 1]]`.

    Args:
        start_Q1: where each query's answers start, and at last their number; `(Q + 1,)` int64.
        item_P: places in the gallery, each at most once a query; `(P,)` int64.
        gallery: the number of items G that each query is answered from.
    """

    start_Q1: np.ndarray
    item_P: np.ndarray
    gallery: int

    @classmethod
    def from_pairs(cls, query_P: np.ndarray, item_P: np.ndarray, *, queries: int, gallery: int) -> Positives:
        """Collect pairs of a query and a right answer, in any order; a pair given twice counts once."""
        query_P, item_P = np.asarray(query_P, np.int64), np.asarray(item_P, np.int64)
        for name, place_P, size in (("query", query_P, queries), ("gallery item", item_P, gallery)):
            if place_P.size and (place_P.min() < 0 or place_P.max() >= size):
                raise InputError(
                    f"a right answer is given for a {name} outside 0 to {size - 1}: "
                    f"they run from {place_P.min()} to {place_P.max()}"
                )
        query_P, item_P = np.divmod(np.unique(query_P * gallery + item_P), max(gallery, 1))
        start_Q1 = np.concatenate([[0], np.bincount(query_P, minlength=queries).cumsum()])
        return cls(start_Q1=start_Q1.astype(np.int64), item_P=item_P, gallery=gallery)

    @classmethod
    def of_images(cls, owner_T: np.ndarray, *, images: int) -> Positives:
        """Queries are images, the gallery captions: all captions that an image owns are right."""
        captions = len(owner_T)
        return cls.from_pairs(owner_T, np.arange(captions), queries=images, gallery=captions)

    def __len__(self) -> int:
        return len(self.start_Q1) - 1

    def turned(self) -> Positives:
        """Return the right queries of every item: the same pairs, from the other side."""
        query_P = np.repeat(np.arange(len(self)), self.count_Q)
        return Positives.from_pairs(self.item_P, query_P, queries=self.gallery, gallery=len(self))

    @property
    def count_Q(self) -> np.ndarray:
        """How many right answers each query has."""
        return np.diff(self.start_Q1)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where each query's best right answer stands, by the counts that decide it.

    Args:
        better_Q: items with a higher score than the best right answer, `(Q,)` float64.
        wrong_Q: wrong items with the same score, likewise.
        right_Q: right items with that score, at least 1.
    """

    better_Q: np.ndarray
    wrong_Q: np.ndarray
    right_Q: np.ndarray

    @property
    def rank_Q(self) -> np.ndarray:
        """0-based ranks, `(Q,)` float64: the mean over all orders of equals."""
        return self.better_Q + self.wrong_Q / (self.right_Q + 1)

    @property
    def tied(self) -> int:
        """Queries whose best right answer has the same score as a wrong one."""
        return int(np.count_nonzero(self.wrong_Q))

    def recall_Q(self, k: int) -> np.ndarray:
        """Return the recall of each query, `(Q,)` float64 from 0 to 1: whether its rank is among the first `k`.

        Where equals are in random order, it is the probability of that. Of e wrong and p right ones the first m are
        within reach, and all of these are wrong with probability C(e, m) / C(e + p, m).
        """
        reach_Q = np.clip(k - self.better_Q, 0, None)
        miss_Q = np.ones_like(reach_Q)
        for drawn in range(min(k, 1 + int(self.wrong_Q.max()))):  # one more than the wrong ones is right
            wrong_Q = np.clip(self.wrong_Q - drawn, 0, None)
            fraction_Q = wrong_Q / np.maximum(wrong_Q + self.right_Q, 1)
            miss_Q *= np.where(drawn < reach_Q, fraction_Q, 1.0)
        return 1.0 - miss_Q


def rank_queries(
    scores: Tensor | np.ndarray | Callable[[int, int], Tensor],
    positives: Positives,
    *,
    skip: bool = False,
    chunk: int = 1 << 22,
    progress: str = "",
) -> Ranks:
    """Rank each query's best right answer among the whole gallery.

    The rank is the number of items with a higher score, plus, of the `e` wrong items with the same score, the mean over
    all orders of the equals: `e / (p + 1)` where `p` right items have that score. So a model that gives all items the
    same score reaches what random scores do.

    Args:
        scores: `(Q, G)`, a view such as `sim.T` included; or a function of `start, stop` that returns
            the rows `(stop - start, G)`, so that the matrix never exists. On any device.
        positives: the right answers of the Q queries.
        skip: leave out queries without a right answer (`positives.count_Q == 0`) instead of refusing them.
        chunk: scores looked at, or computed, at a time: the memory beyond a given matrix is a few times this.
        progress: what a progress bar says after two seconds; none where empty.

    Raises:
        InputError: a score is NaN, a query has no right answer, or shapes and `positives` disagree.
    """
    answerable_Q = check_answers(positives, skip=skip)
    counts = []
    with Progress(total=len(positives), desc=progress, leave=False, disable=not progress) as bar:
        for start, score_QG in _chunks(scores, positives, rows=max(1, chunk // positives.gallery)):
            counts.append(_count(score_QG, positives, start).cpu())
            bar.update(len(score_QG))
    better_Q, wrong_Q, right_Q = torch.cat(counts, dim=1).double().numpy()[:, answerable_Q]
    return Ranks(better_Q=better_Q, wrong_Q=wrong_Q, right_Q=right_Q)


def in_places(value_A: np.ndarray, at: np.ndarray, *, size: int, absent: float | bool = np.nan) -> np.ndarray:
    """Return `(size,)`: values of some queries in their places, by number or mask, and a filling for the others."""
    value_Q = np.full(size, absent, dtype=value_A.dtype)
    value_Q[at] = value_A
    return value_Q


def check_answers(positives: Positives, *, skip: bool = False) -> np.ndarray:
    """Return which queries have a right answer, `(Q,)` bool; refuse those without, unless they are skipped.

    Raises:
        InputError: none has one, or one has none.
    """
    answerable_Q = positives.count_Q > 0
    if not answerable_Q.any():
        raise InputError(f"none of the {len(positives)} queries has a right answer: there is nothing to rank")
    if not (answerable_Q.all() or skip):
        raise InputError(
            f"query {int(np.argmin(answerable_Q))} has no right answer, and {int((~answerable_Q).sum())} "
            f"of {len(answerable_Q)} queries have none; give each one, or rank with skip=True to leave them out"
        )
    return answerable_Q


def _chunks(
    scores: Tensor | np.ndarray | Callable[[int, int], Tensor], positives: Positives, *, rows: int
) -> Iterator[tuple[int, Tensor]]:
    queries, gallery = len(positives), positives.gallery
    if isinstance(scores, Tensor | np.ndarray) and tuple(scores.shape) != (queries, gallery):
        raise InputError(
            f"scores have shape {tuple(scores.shape)}, expected {queries} queries x {gallery} items"
        )
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        part = slice(start, stop)
        score_QG = scores[part] if isinstance(scores, Tensor | np.ndarray) else scores(start, stop)
        if tuple(score_QG.shape) != (stop - start, gallery):
            raise InputError(
                f"scores of queries {start} to {stop - 1} have shape {tuple(score_QG.shape)}, "
                f"expected {(stop - start, gallery)}"
            )
        if isinstance(score_QG, np.ndarray):  # torch shares memory with writable arrays only
            score_QG = torch.from_numpy(score_QG if score_QG.flags.writeable else score_QG.copy(order="K"))
        yield start, score_QG


def _count(score_QG: Tensor, positives: Positives, start: int) -> Tensor:
    """Count the items above each query's best right answer, then the wrong and right ones level with it."""
    queries = len(score_QG)
    if score_QG.sum().isnan() and (nan_Q := score_QG.isnan().any(dim=1)).any():  # infinities also sum to NaN
        raise InputError(
            f"query {start + int(nan_Q.int().argmax())} has a score that is NaN; "
            "check the features and the checkpoint: a diverged model scores like this"
        )
    first, last = positives.start_Q1[[start, start + queries]]
    local_P = np.repeat(np.arange(queries), positives.count_Q[start : start + queries])
    query_P = torch.from_numpy(local_P).to(score_QG.device)
    item_P = torch.from_numpy(positives.item_P[first:last]).to(score_QG.device)

    best_Q, right_Q = best_scores(query_P, score_QG[query_P, item_P], queries)
    # Written as floats because sums of floats are several times faster than sums of bools, and exact to 2^24.
    hit_QG = torch.empty_like(score_QG, dtype=torch.float32)
    better_Q = torch.gt(score_QG, best_Q[:, None], out=hit_QG).sum(dim=1)
    level_Q = torch.eq(score_QG, best_Q[:, None], out=hit_QG).sum(dim=1)
    return torch.stack([better_Q, level_Q - right_Q, right_Q])


def best_scores(query_P: Tensor, right_P: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """Return the score of each query's best right answer, and how many right ones have it, both `(Q,)`.

    Args:
        query_P: the query of each right answer.
        right_P: what that scores.
        queries: how many there are; one without a right answer has -inf, and 0 of them.
    """
    best_Q = right_P.new_full((queries,), -torch.inf).scatter_reduce(0, query_P, right_P, "amax")
    best_P = (right_P == best_Q[query_P]).float()
    return best_Q, best_P.new_zeros(queries).scatter_add(0, query_P, best_P)


def recall(ranks: Ranks, *, ks: Sequence[int] = KS, floor_median: bool = True) -> dict[str, float]:
    """Summarise ranks.

    Args:
        ranks: of all queries.
        ks: where recall is cut.
        floor_median: round the median rank down, as VSE++ and its followers do; HGR does not.

    Returns:
        `R1`, `R5`, ...: recall in per cent; `medr` and `meanr`: the median and the mean rank, counted from 1.
    """
    recalls = {f"R{k}": 100.0 * float(np.mean(ranks.recall_Q(k))) for k in ks}
    median = float(np.median(ranks.rank_Q))
    return recalls | {
        "medr": (np.floor(median) if floor_median else median) + 1,
        "meanr": float(np.mean(ranks.rank_Q) + 1),
    }


def retrieval_metrics(
    i2t: Ranks,
    t2i: Ranks,
    *,
    directions: tuple[str, str] = ("i2t", "t2i"),
    floor_median: bool = True,
) -> dict[str, float]:
    """Name the metrics of both directions, `i2t/R1` to `t2i/meanr`, and `rsum`, the sum of six recalls."""
    metrics = {
        f"{direction}/{name}": value
        for direction, ranks in zip(directions, (i2t, t2i), strict=True)
        for name, value in recall(ranks, floor_median=floor_median).items()
    }
    return {**metrics, "rsum": sum(metrics[f"{direction}/R{k}"] for direction in directions for k in KS)}


def chance_recall(positives: Positives, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Return the expected recall, in per cent, of a gallery in random order.

    A query with p right answers among G items misses all of them in its first K with probability
    C(G - p, K) / C(G, K).
    """
    count_Q = positives.count_Q[positives.count_Q > 0, None]
    chance = {}
    for k in ks:
        drawn_K = np.arange(min(k, positives.gallery))
        miss_QK = np.clip(positives.gallery - count_Q - drawn_K, 0, None) / (positives.gallery - drawn_K)
        chance[f"R{k}"] = 100.0 * float(np.mean(1.0 - miss_QK.prod(axis=1)))
    return chance
