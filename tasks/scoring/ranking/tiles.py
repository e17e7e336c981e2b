"""Ranks of both directions from one pass over a score matrix, tile by tile: each score is computed once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress
from polypool.tasks.adapter import Score
from polypool.tasks.scoring.metrics import Positives, Ranks, best_scores, check_answers

# Rows and columns that are scored at once: products of matrices are no slower than of the whole, and take 8 MB.
TILE = (1024, 2048)
# Scores of a tile that are counted at once: 1 MB, which stays in a processor's cache for both directions.
LOOKED_AT = 1 << 18
# Bytes of tiles that are kept until they are counted; those of COCO's 5,000 images and 25,000 captions are 180 MB.
HELD = 1 << 30


def rank_both_ways(score: Score, of_rows: Positives, *, progress: str = "") -> tuple[Ranks, Ranks]:
    """Rank the columns for every row, and the rows for every column: what `rank_queries` finds in either direction.

    What is above a right answer can be counted once the right answer's score is known. So tiles with right answers are
    computed first, and wait; they are few where right answers are along the diagonal. Then all are counted, by their
    rows and by their columns. Tiles beyond `HELD` do not wait, but are computed again.

    Args:
        score: returns any block of the `(R, C)` scores; called for tiles, in the same order in every process.
        of_rows: the right columns of every row; each row and each column has one.
        progress: what a progress bar says after two seconds; none where empty.

    Raises:
        InputError: a score is NaN, or a row or a column has no right answer.
    """
    of_columns = of_rows.turned()
    for positives in (of_rows, of_columns):
        check_answers(positives)
    tiles = _Tiles(score, of_rows)
    right_P = tiles.right_scores()
    by_row = _Side(tiles.row_P, right_P, len(of_rows))
    by_column = _Side(tiles.column_P, right_P, len(of_columns))
    with Progress(total=len(tiles), desc=progress, leave=False, disable=not progress) as bar:
        for rows, columns, tile_RC in tiles:
            step = max(1, LOOKED_AT // tile_RC.shape[1])
            for start in range(0, len(tile_RC), step):
                part_RC = tile_RC[start : start + step]
                first = rows.start + start
                by_row.count(part_RC, slice(first, first + len(part_RC)))
                by_column.count(part_RC.T, columns)
            bar.update()
    return by_row.ranks(), by_column.ranks()


class _Tiles:
    """The tiles of a score matrix, in which right answers are NaN, so that only wrong ones are above or level.

    Attributes:
        row_P, column_P: the pairs of a row and a right column, tile by tile.
        pairs: by the number of a tile, which of them are in it.
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
        self.held: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return -(-self.shape[0] // TILE[0]) * self.across

    def right_scores(self) -> Tensor:
        """Return the `(P,)` scores of the right answers."""
        found, room = [], HELD
        for number in self.pairs:
            tile_RC, right_P = self._computed(number)
            found.append(right_P)
            room -= tile_RC.nbytes
            if room >= 0:
                self.held[number] = tile_RC
        return torch.cat(found)

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        for number in range(len(self)):
            tile_RC = self.held.pop(number) if number in self.held else self._computed(number)[0]
            yield *self._place(number), tile_RC

    def _place(self, number: int) -> tuple[slice, slice]:
        rows, columns = (
            slice(part * size, min((part + 1) * size, end))
            for part, size, end in zip(divmod(number, self.across), TILE, self.shape, strict=True)
        )
        return rows, columns

    def _computed(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a tile, and the scores of its right answers, which are no longer in it."""
        rows, columns = self._place(number)
        tile_RC = self.score(rows, columns)
        if tile_RC.sum().isnan() and (nan_RC := tile_RC.isnan()).any():  # infinities also sum to NaN
            row, column = nan_RC.nonzero()[0].tolist()
            raise InputError(
                f"the score of item {rows.start + row} and caption {columns.start + column} is NaN; "
                "check the features and the checkpoint: a diverged model scores like this"
            )
        if number not in self.pairs:
            return tile_RC, tile_RC.new_empty(0)
        place = tuple(
            torch.from_numpy(place_P[self.pairs[number]] - part.start).to(tile_RC.device)
            for place_P, part in ((self.row_P, rows), (self.column_P, columns))
        )
        # out of place: a score may hand out what it keeps
        return tile_RC.index_put(place, tile_RC.new_tensor(torch.nan)), tile_RC[place]


class _Side:
    """The queries of one direction, and how many wrong answers are above and level with the best right one of each.

    Args:
        query_P: the query of each right answer.
        right_P: what that scores.
        queries: how many there are.
    """

    def __init__(self, query_P: np.ndarray, right_P: Tensor, queries: int) -> None:
        asked_P = torch.from_numpy(query_P).to(right_P.device)
        self.best_Q, self.right_Q = best_scores(asked_P, right_P, queries)
        self.better_Q, self.wrong_Q = torch.zeros_like(self.right_Q), torch.zeros_like(self.right_Q)

    def count(self, part_QG: Tensor, queries: slice) -> None:
        hit_QG = torch.empty_like(part_QG, dtype=torch.float32)
        best_Q1 = self.best_Q[queries, None]
        self.better_Q[queries] += torch.gt(part_QG, best_Q1, out=hit_QG).sum(dim=1)
        self.wrong_Q[queries] += torch.eq(part_QG, best_Q1, out=hit_QG).sum(dim=1)

    def ranks(self) -> Ranks:
        better_Q, wrong_Q, right_Q = (
            x_Q.double().cpu().numpy() for x_Q in (self.better_Q, self.wrong_Q, self.right_Q)
        )
        return Ranks(better_Q=better_Q, wrong_Q=wrong_Q, right_Q=right_Q)
