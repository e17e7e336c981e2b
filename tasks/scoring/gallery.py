"""A part of a split as queries and galleries of each other: images or videos, and their captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tasks.base import Score
from tasks.scoring.metrics import Positives, Ranks, Ties, chance_recall, rank_queries

IN_MEMORY = 1 << 30
"""Bytes of scores that are held; COCO's 5,000 images x 25,000 captions are half of that."""


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
        """How many images or videos there are."""
        return self.rows.stop - self.rows.start

    def rank(self, score: Score, *, ties: Ties) -> tuple[Ranks, Ranks]:
        """Rank captions for every item, and items for every caption.

        Scores that fit into `IN_MEMORY` are computed once and looked at from both sides, others once for each.
        """
        kept_IG: Tensor | None = None

        def for_items(start: int, stop: int) -> Tensor:
            nonlocal kept_IG
            block_IG = _block(score, slice(self.rows.start + start, self.rows.start + stop), self.column_G)
            size = self.items, len(self.column_G)
            if kept_IG is None and block_IG.element_size() * math.prod(size) <= IN_MEMORY:
                kept_IG = block_IG.new_empty(size)
            if kept_IG is not None:
                kept_IG[start:stop] = block_IG
            return block_IG

        def for_captions(start: int, stop: int) -> Tensor:
            if kept_IG is not None:
                return kept_IG[:, start:stop].T
            return _block(score, self.rows, self.column_G[start:stop]).T

        of_items, of_captions = self.positives()
        return (
            rank_queries(for_items, of_items, ties=ties, progress="ranking captions"),
            rank_queries(for_captions, of_captions, ties=ties, progress="ranking items"),
        )

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
        items, captions = self.items, len(self.column_G)
        return (
            Positives.from_pairs(self.item_P, self.place_P, queries=items, gallery=captions),
            Positives.from_pairs(self.place_P, self.item_P, queries=captions, gallery=items),
        )


def _block(score: Score, rows: slice, column_G: np.ndarray) -> Tensor:
    """Return the scores of rows against ascending columns, which are asked for as one block."""
    first, last = int(column_G[0]), int(column_G[-1]) + 1
    block = score(rows, slice(first, last))
    return block if last - first == len(column_G) else block[:, column_G - first]
