"""Evaluation of a split's scores under a protocol, over one or more galleries.

Scores are computed block by block, `score(images, captions)` with two slices, and never stored as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from polypool.tasks.adapter import Score
from polypool.tasks.scoring.metrics import (
    KS,
    Positives,
    Ranks,
    chance_recall,
    rank_both_ways,
    retrieval_metrics,
)
from polypool.tasks.scoring.protocols import ScoringProtocol
from polypool.tasks.scoring.rescoring import rank_rescored
from polypool.tasks.scoring.scores import QueryBank, ScoreWithBank


@dataclass(frozen=True, kw_only=True)
class RetrievalGallery:
    """Consecutive items of a split and their captions.

    For `distinct` captions, equal strings are in the gallery once, at the first position, and are a right answer of
    every item that has them, as in HGR's evaluation; their order is the split's in every process.

    Attributes:
        rows: the items, as indices in the split.
        column_G: the captions, as indices in the split, ascending.
        item_P, place_P: matching pairs of an item (from 0) and an index in `column_G`.
    """

    rows: slice
    column_G: np.ndarray
    item_P: np.ndarray
    place_P: np.ndarray

    @classmethod
    def of(cls, rows: slice, owner_T: np.ndarray, *, texts: Sequence[str] | None = None) -> RetrievalGallery:
        """Take the items `rows` of a split and their captions.

        Args:
            rows: the items.
            owner_T: the item of each of the split's captions, ascending.
            texts: the split's captions, to merge equal ones; None to keep all.
        """
        first, last = np.searchsorted(owner_T, (rows.start, rows.stop)).tolist()
        item_P = owner_T[first:last] - rows.start
        if texts is None:
            return cls(
                rows=rows, column_G=np.arange(first, last), item_P=item_P, place_P=np.arange(last - first)
            )
        places: dict[str, int] = {}
        place_P = np.array([places.setdefault(text, len(places)) for text in texts[first:last]], np.int64)
        _, column_G = np.unique(place_P, return_index=True)
        return cls(rows=rows, column_G=column_G + first, item_P=item_P, place_P=place_P)

    @property
    def items(self) -> int:
        return self.rows.stop - self.rows.start

    def rank(self, score: Score, protocol: ScoringProtocol) -> tuple[Ranks, Ranks]:
        """Rank captions for every item, and items for every caption.

        Args:
            score: of the split; a `ScoreWithBank` for protocols with a query bank.
            protocol: determines how scores are rescored.
        """
        of_items, _ = self.positives()
        if protocol.rescore:
            bank = None
            if protocol.by_bank:
                assert isinstance(score, ScoreWithBank), "the adapter makes the bank"
                bank = self.bank_within(score.bank)
            return rank_rescored(self.within(score), of_items, bank=bank)
        return rank_both_ways(self.within(score), of_items, progress="ranking")

    def within(self, score: Score) -> Score:
        """Return the scores by index in the gallery."""

        def block(items: slice, captions: slice) -> Tensor:
            column_G = self.column_G[captions]
            first, last = int(column_G[0]), int(column_G[-1]) + 1
            block_IG = score(
                slice(self.rows.start + items.start, self.rows.start + items.stop), slice(first, last)
            )
            return block_IG if last - first == len(column_G) else block_IG[:, column_G - first]

        return block

    def bank_within(self, bank: QueryBank) -> QueryBank:
        """Return the scores of training queries by index in the gallery."""
        first, last = int(self.column_G[0]), int(self.column_G[-1]) + 1
        return QueryBank(
            items=lambda images, _: bank.items(images, slice(first, last))[:, self.column_G - first],
            captions=lambda _, captions: bank.captions(self.rows, captions),
            sizes=bank.sizes,
        )

    def chance(self, *, directions: tuple[str, str] = ("i2t", "t2i")) -> dict[str, float]:
        """Return the expected recalls, such as `i2t/R1`, and `rsum` for random scores."""
        chance = {
            f"{direction}/{name}": value
            for direction, positives in zip(directions, self.positives(), strict=True)
            for name, value in chance_recall(positives).items()
        }
        return {**chance, "rsum": sum(chance.values())}

    def positives(self) -> tuple[Positives, Positives]:
        """Return the right captions of every item, and the right items of every caption, as indices in the gallery."""
        of_items = Positives.from_pairs(
            self.item_P, self.place_P, queries=self.items, gallery=len(self.column_G)
        )
        return of_items, of_items.transposed()


@dataclass(frozen=True, kw_only=True)
class ProtocolResult:
    """Result of `evaluate_protocol`.

    Args:
        metrics: `i2t/R1`, ..., `rsum`; means over the folds.
        ranks_i2t: 0-based rank of each item's best caption in its fold.
        ranks_t2i: 0-based rank of each caption's best item in its fold.
        recalls: by `i2t/R1` and so on, the recall of each query, from 0 to 1, in the order of the ranks.
        caption_G: the ranked captions, as indices in the split.
        ties: number of queries in both directions whose right answer ties with a wrong one.
        chance: expected values of `i2t/R1`, ..., `rsum` for random scores.
    """

    metrics: dict[str, float]
    ranks_i2t: np.ndarray
    ranks_t2i: np.ndarray
    recalls: dict[str, np.ndarray]
    caption_G: np.ndarray
    ties: int
    chance: dict[str, float]


def evaluate_protocol(
    protocol: ScoringProtocol,
    score: Score,
    owner_T: np.ndarray,
    n_items: int,
    *,
    texts: Sequence[str] | None = None,
    directions: tuple[str, str] = ("i2t", "t2i"),
) -> ProtocolResult:
    """Score a split under a protocol.

    Args:
        protocol: the protocol.
        score: the scores of a block, `score(items, captions) -> (items, captions)`; higher is more similar; a
            `ScoreWithBank` for protocols with a query bank.
        owner_T: the image or video of each caption of the split, in the items' order.
        n_items: number of images or videos of the split.
        texts: the captions, for `distinct` protocols.
        directions: names of items to captions and captions to items.

    Raises:
        InputError: the split has the wrong size, an item has no caption, or a score is NaN.
    """
    owner_T = np.asarray(owner_T)
    assert (np.diff(owner_T) >= 0).all(), "captions are in the order of the items"
    items = min(n_items, protocol.first or n_items)
    if items < n_items:
        owner_T = owner_T[: np.searchsorted(owner_T, items)]
    protocol.check(items, len(owner_T))
    assert texts is not None or not protocol.distinct, "distinct captions are told apart by their texts"

    bounds = np.linspace(0, items, protocol.folds + 1, dtype=int).tolist()
    folds = [
        RetrievalGallery.of(slice(*fold), owner_T, texts=texts if protocol.distinct else None)
        for fold in itertools.pairwise(bounds)
    ]
    ranked = [fold.rank(score, protocol) for fold in folds]
    metrics = [
        retrieval_metrics(i2t, t2i, directions=directions, floor_median=protocol.floor_median)
        for i2t, t2i in ranked
    ]
    chance = [fold.chance(directions=directions) for fold in folds]
    recalls = {
        f"{direction}/R{k}": np.concatenate([ranks[side].recall_Q(k) for ranks in ranked])
        for side, direction in enumerate(directions)
        for k in KS
    }
    return ProtocolResult(
        metrics=_mean(metrics),
        ranks_i2t=np.concatenate([i2t.rank_Q for i2t, _ in ranked]),
        ranks_t2i=np.concatenate([t2i.rank_Q for _, t2i in ranked]),
        recalls=recalls,
        caption_G=np.concatenate([fold.column_G for fold in folds]),
        ties=sum(i2t.tied + t2i.tied for i2t, t2i in ranked),
        chance=_mean(chance),
    )


def _mean(folds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}
