"""A part of a split as queries and galleries of each other: images or videos, and their captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from polypool.tasks.adapter import Score
from polypool.tasks.scoring.metrics import Positives, Ranks, chance_recall
from polypool.tasks.scoring.ranking.reranking import rank_reranked
from polypool.tasks.scoring.ranking.tiles import rank_both_ways
from polypool.tasks.scoring.scores import PairsScore


@dataclass(frozen=True, kw_only=True)
class RetrievalGallery:
    """Consecutive items of a split and their captions.

    Where captions are `distinct`, the same string stands in the gallery once, where it comes first, and is a right
    answer of every item that has it, as in HGR's evaluation; but their order is that of the split in every process.

    Attributes:
        rows: the items, as places in the split.
        column_G: the captions, as places in the split, ascending.
        item_P, place_P: pairs that belong together, an item (from 0) and a place in `column_G`.
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
            texts: the split's captions, where equal ones are to stand in the gallery once.
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

    def rank(self, score: Score, *, rerank: int = 0) -> tuple[Ranks, Ranks]:
        """Rank captions for every item, and items for every caption.

        Args:
            score: of the split.
            rerank: how many of a query's gallery are scored, by a `PairsScore`; see `rank_reranked`. 0 for all. Where
                it reaches the smaller side, every pair is one of them, and all are ranked by their scores.
        """
        of_items, _ = self.positives()
        if 0 < rerank < min(self.items, len(self.column_G)):
            assert isinstance(score, PairsScore), "check_rerank refuses others"
            row_V = np.arange(self.rows.start, self.rows.stop)
            return rank_reranked(score, row_V, self.column_G, of_items, k=rerank)
        return rank_both_ways(self.within(score), of_items, progress="ranking")

    def within(self, score: Score) -> Score:
        """Return the scores of items and captions of the gallery, by their places in it."""

        def block(items: slice, captions: slice) -> Tensor:
            column_G = self.column_G[captions]
            first, last = int(column_G[0]), int(column_G[-1]) + 1
            block_IG = score(
                slice(self.rows.start + items.start, self.rows.start + items.stop), slice(first, last)
            )
            return block_IG if last - first == len(column_G) else block_IG[:, column_G - first]

        return block

    def chance(self, *, directions: tuple[str, str] = ("i2t", "t2i")) -> dict[str, float]:
        """Return what random scores reach on average: each recall, such as `i2t/R1`, and `rsum`."""
        chance = {
            f"{direction}/{name}": value
            for direction, positives in zip(directions, self.positives(), strict=True)
            for name, value in chance_recall(positives).items()
        }
        return {**chance, "rsum": sum(chance.values())}

    def positives(self) -> tuple[Positives, Positives]:
        """Return the right captions of every item, and the right items of every caption, as places in here."""
        of_items = Positives.from_pairs(
            self.item_P, self.place_P, queries=self.items, gallery=len(self.column_G)
        )
        return of_items, of_items.turned()
