"""Ranks, recall and chance level of retrieval, from scores that need not be in memory as a whole.

A query may have several right answers; its rank is that of the best one, as in SCAN, VSE++ and VSE-infinity. Unlike in
their codes, ties are resolved by a rule instead of the order of an unstable sort, and NaN scores are an error instead
of a first rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress
from polypool.tasks.adapter import Score

KS = (1, 5, 10)
# Rows and columns scored at once, 8 MB: the matrix products take no longer in total than one for the whole matrix.
TILE = (1024, 2048)
# Scores of a tile that are counted at once: 1 MB, which stays in a processor's cache for both directions.
COUNTED = 1 << 18
# Bytes of tiles that are kept until they are counted; for COCO's 5,000 images and 25,000 captions they are 180 MB.
CACHED = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Positives:
    """The right answers of every query: for query q, `item_P[start_Q1[q] : start_Q1[q + 1]]`.

    Args:
        start_Q1: offset of each query's answers, and their total; `(Q + 1,)` int64.
        item_P: indices in the gallery, each at most once per query; `(P,)` int64.
        gallery: number of items G in the gallery.
    """

    start_Q1: np.ndarray
    item_P: np.ndarray
    gallery: int

    @classmethod
    def from_pairs(cls, query_P: np.ndarray, item_P: np.ndarray, *, queries: int, gallery: int) -> Positives:
        """Collect pairs of a query and a right answer, in any order; duplicates count once."""
        query_P, item_P = np.asarray(query_P, np.int64), np.asarray(item_P, np.int64)
        for place_P, size in ((query_P, queries), (item_P, gallery)):
            assert not place_P.size or (place_P.min() >= 0 and place_P.max() < size)
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

    def transposed(self) -> Positives:
        """Return the transpose: the right queries of every item."""
        query_P = np.repeat(np.arange(len(self)), self.count_Q)
        return Positives.from_pairs(self.item_P, query_P, queries=self.gallery, gallery=len(self))

    @property
    def count_Q(self) -> np.ndarray:
        """Number of right answers of each query."""
        return np.diff(self.start_Q1)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The rank of each query's best right answer, as the counts that determine it.

    Args:
        better_Q: number of items with a higher score than the best right answer, `(Q,)` float64.
        wrong_Q: number of wrong items with the same score.
        right_Q: number of right items with that score, at least 1.
    """

    better_Q: np.ndarray
    wrong_Q: np.ndarray
    right_Q: np.ndarray

    @property
    def rank_Q(self) -> np.ndarray:
        """0-based ranks, `(Q,)` float64: the mean over all orders of ties."""
        return self.better_Q + self.wrong_Q / (self.right_Q + 1)

    @property
    def tied(self) -> int:
        """Number of queries whose best right answer ties with a wrong one."""
        return int(np.count_nonzero(self.wrong_Q))

    def recall_Q(self, k: int) -> np.ndarray:
        """Return the recall at `k` of each query, `(Q,)` float64 in [0, 1].

        For ties in random order it is a probability: of e wrong and p right tied items the first m are within the top
        k, and all of these are wrong with probability C(e, m) / C(e + p, m).
        """
        reach_Q = np.clip(k - self.better_Q, 0, None)
        miss_Q = np.ones_like(reach_Q)
        for drawn in range(min(k, 1 + int(self.wrong_Q.max()))):  # one more than the wrong ones is right
            wrong_Q = np.clip(self.wrong_Q - drawn, 0, None)
            fraction_Q = wrong_Q / np.maximum(wrong_Q + self.right_Q, 1)
            miss_Q *= np.where(drawn < reach_Q, fraction_Q, 1.0)
        return 1.0 - miss_Q


def rank_queries(
    scores: Tensor | Callable[[int, int], Tensor],
    positives: Positives,
    *,
    skip: bool = False,
    chunk: int = 1 << 22,
    progress: str = "",
) -> Ranks:
    """Rank each query's best right answer among the whole gallery.

    The rank is the number of items with a higher score, plus the mean over all orders of ties of the number of the `e`
    tied wrong items before it: `e / (p + 1)` for `p` tied right items. So a model that gives all items the same score
    reaches the chance level.

    Args:
        scores: `(Q, G)`, including views such as `sim.T`; or a function of `start, stop` that returns the rows
            `(stop - start, G)`, so that the matrix is never stored. On any device.
        positives: the right answers of the Q queries.
        skip: skip queries without a right answer (`positives.count_Q == 0`) instead of raising.
        chunk: scores counted per block: memory in addition to a given matrix is a few times this.
        progress: label of a progress bar that appears after two seconds; none if empty.

    Raises:
        InputError: a score is NaN, or a query has no right answer.
    """
    answerable_Q = check_answers(positives, skip=skip)
    queries, counts = len(positives), []
    with Progress(total=queries, desc=progress, leave=False, disable=not progress) as bar:
        for start in range(0, queries, step := max(1, chunk // positives.gallery)):
            stop = min(start + step, queries)
            score_QG = scores[start:stop] if isinstance(scores, Tensor) else scores(start, stop)
            assert score_QG.shape == (stop - start, positives.gallery), score_QG.shape
            first, last = positives.start_Q1[[start, stop]]
            query_P = np.repeat(np.arange(stop - start), positives.count_Q[start:stop])
            wrong_QG, right_P = _split_right(score_QG, query_P, positives.item_P[first:last], at=(start, 0))
            side = _Side(query_P, right_P, stop - start)
            side.count(wrong_QG, slice(None))
            counts.append(side.ranks())
            bar.update(stop - start)
    return Ranks(
        better_Q=np.concatenate([of.better_Q for of in counts])[answerable_Q],
        wrong_Q=np.concatenate([of.wrong_Q for of in counts])[answerable_Q],
        right_Q=np.concatenate([of.right_Q for of in counts])[answerable_Q],
    )


def rank_both_ways(score: Score, of_rows: Positives, *, progress: str = "") -> tuple[Ranks, Ranks]:
    """Rank the columns for every row, and the rows for every column, as `rank_queries` in both directions.

    Counting the scores above a right answer needs its score first. So tiles with right answers are computed first and
    kept; they are few if right answers are along the diagonal. Then all tiles are counted by rows and by columns. Tiles
    beyond `CACHED` are recomputed instead of kept.

    Args:
        score: returns any block of the `(R, C)` scores; called for tiles, in the same order in every process.
        of_rows: the right columns of every row; each row and each column has one.
        progress: label of a progress bar that appears after two seconds; none if empty.

    Raises:
        InputError: a score is NaN, or a row or a column has no right answer.
    """
    of_columns = of_rows.transposed()
    for positives in (of_rows, of_columns):
        check_answers(positives)
    tiles = _Tiles(score, of_rows)
    right_P = tiles.right_scores()
    by_row = _Side(tiles.row_P, right_P, len(of_rows))
    by_column = _Side(tiles.column_P, right_P, len(of_columns))
    with Progress(total=len(tiles), desc=progress, leave=False, disable=not progress) as bar:
        for rows, columns, tile_RC in tiles:
            step = max(1, COUNTED // tile_RC.shape[1])
            for start in range(0, len(tile_RC), step):
                part_RC = tile_RC[start : start + step]
                first = rows.start + start
                by_row.count(part_RC, slice(first, first + len(part_RC)))
                by_column.count(part_RC.T, columns)
            bar.update()
    return by_row.ranks(), by_column.ranks()


class _Tiles:
    """The tiles of a score matrix, with right answers set to NaN, so that only wrong ones are counted.

    Attributes:
        row_P, column_P: the pairs of a row and a right column, tile by tile.
        pairs: by tile number, the pairs in it.
    """

    def __init__(self, score: Score, of_rows: Positives) -> None:
        self.score, self.shape = score, (len(of_rows), of_rows.gallery)
        self.across = -(-self.shape[1] // TILE[1])
        row_P, column_P = np.repeat(np.arange(len(of_rows)), of_rows.count_Q), of_rows.item_P
        tile_P = row_P // TILE[0] * self.across + column_P // TILE[1]
        order_P = np.argsort(tile_P, kind="stable")
        self.row_P, self.column_P = row_P[order_P], column_P[order_P]
        numbers, first = np.unique(tile_P[order_P], return_index=True)
        last = [*first[1:], len(order_P)]
        self.pairs = {n: slice(a, b) for n, a, b in zip(numbers.tolist(), first, last, strict=True)}
        self.cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return -(-self.shape[0] // TILE[0]) * self.across

    def right_scores(self) -> Tensor:
        """Return the `(P,)` scores of the right answers."""
        found, room = [], CACHED
        for number in self.pairs:
            tile_RC, right_P = self._computed(number)
            found.append(right_P)
            room -= tile_RC.nbytes
            if room >= 0:
                self.cache[number] = tile_RC
        return torch.cat(found)

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        for number in range(len(self)):
            tile_RC = self.cache.pop(number) if number in self.cache else self._computed(number)[0]
            yield *self._place(number), tile_RC

    def _place(self, number: int) -> tuple[slice, slice]:
        rows, columns = (
            slice(part * size, min((part + 1) * size, end))
            for part, size, end in zip(divmod(number, self.across), TILE, self.shape, strict=True)
        )
        return rows, columns

    def _computed(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a tile, and the scores of its right answers, which are removed from it."""
        rows, columns = self._place(number)
        pairs = self.pairs.get(number, slice(0))
        place = self.row_P[pairs] - rows.start, self.column_P[pairs] - columns.start
        return _split_right(self.score(rows, columns), *place, at=(rows.start, columns.start))


def _split_right(
    score_RC: Tensor, row_P: np.ndarray, column_P: np.ndarray, *, at: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return scores with right answers set to NaN, which compares false, and the right answers' scores, `(P,)`.

    Args:
        score_RC: a block of the scores.
        row_P, column_P: its right answers.
        at: offset of the block.

    Raises:
        InputError: a score is NaN.
    """
    if score_RC.sum().isnan() and (nan_RC := score_RC.isnan()).any():  # infinities also sum to NaN
        row, column = nan_RC.nonzero()[0].tolist()
        raise InputError(
            f"the score in row {at[0] + row}, column {at[1] + column} is NaN; "
            "check the features and the checkpoint: a diverged model scores like this"
        )
    place = tuple(torch.from_numpy(place_P).to(score_RC.device) for place_P in (row_P, column_P))
    # out of place: a score function may return a view of its cache
    return score_RC.index_put(place, score_RC.new_tensor(torch.nan)), score_RC[place]


class _Side:
    """The queries of one direction, with counts of wrong answers above and tied with each best right one.

    Args:
        query_P: the query of each right answer.
        right_P: its score.
        queries: number of queries.
    """

    def __init__(self, query_P: np.ndarray, right_P: Tensor, queries: int) -> None:
        of_P = torch.from_numpy(query_P).to(right_P.device)
        self.best_Q = right_P.new_full((queries,), -torch.inf).scatter_reduce(0, of_P, right_P, "amax")
        best_P = (right_P == self.best_Q[of_P]).float()
        self.right_Q = best_P.new_zeros(queries).scatter_add(0, of_P, best_P)
        self.better_Q, self.wrong_Q = torch.zeros_like(self.right_Q), torch.zeros_like(self.right_Q)

    def count(self, part_QG: Tensor, queries: slice) -> None:
        # sums of floats are several times faster than sums of bools, and exact to 2^24
        hit_QG = torch.empty_like(part_QG, dtype=torch.float32)
        best_Q1 = self.best_Q[queries, None]
        self.better_Q[queries] += torch.gt(part_QG, best_Q1, out=hit_QG).sum(dim=1)
        self.wrong_Q[queries] += torch.eq(part_QG, best_Q1, out=hit_QG).sum(dim=1)

    def ranks(self) -> Ranks:
        better_Q, wrong_Q, right_Q = (
            x_Q.double().cpu().numpy() for x_Q in (self.better_Q, self.wrong_Q, self.right_Q)
        )
        return Ranks(better_Q=better_Q, wrong_Q=wrong_Q, right_Q=right_Q)


def in_places(value_A: np.ndarray, at: np.ndarray, *, size: int, absent: float | bool = np.nan) -> np.ndarray:
    """Scatter values of some queries, by index or mask, into `(size,)`; others get a fill value."""
    value_Q = np.full(size, absent, dtype=value_A.dtype)
    value_Q[at] = value_A
    return value_Q


def check_answers(positives: Positives, *, skip: bool = False) -> np.ndarray:
    """Return the mask of queries with a right answer, `(Q,)` bool; raise for queries without, unless skipped.

    Raises:
        InputError: no query has one, or a query has none.
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


def recall(ranks: Ranks, *, ks: Sequence[int] = KS, floor_median: bool = True) -> dict[str, float]:
    """Summarise ranks.

    Args:
        ranks: of all queries.
        ks: cut-off ranks of recall.
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
    """Return the expected recall, in per cent, for a gallery in random order.

    A query with p right answers among G items misses all of them in its first K with probability C(G - p, K) / C(G, K).
    """
    count_Q = positives.count_Q[positives.count_Q > 0, None]
    chance = {}
    for k in ks:
        drawn_K = np.arange(min(k, positives.gallery))
        miss_QK = np.clip(positives.gallery - count_Q - drawn_K, 0, None) / (positives.gallery - drawn_K)
        chance[f"R{k}"] = 100.0 * float(np.mean(1.0 - miss_QK.prod(axis=1)))
    return chance
