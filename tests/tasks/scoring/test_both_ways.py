"""Ranks in both directions from one pass, against counts over the whole matrix."""

import numpy as np
import pytest
import torch
from score_batches import CountedScore

from polypool.tasks.scoring import metrics
from polypool.tasks.scoring.metrics import Positives, Ranks, rank_both_ways


def pairs(rows: int, columns: int, *, more: int) -> Positives:
    """Return one right row per column, in the rows' order, and `more` random right pairs."""
    rng = np.random.default_rng(0)
    row_P = np.concatenate([np.arange(columns) * rows // columns, rng.integers(0, rows, more)])
    column_P = np.concatenate([np.arange(columns), rng.integers(0, columns, more)])
    return Positives.from_pairs(row_P, column_P, queries=rows, gallery=columns)


def counted(score_QG: np.ndarray, positives: Positives) -> np.ndarray:
    """Count wrong answers above the best right one, and wrong and right answers tied with it, per query."""
    counts = []
    for query, score_G in enumerate(score_QG):
        right = positives.item_P[positives.start_Q1[query] : positives.start_Q1[query + 1]]
        wrong_G = np.delete(score_G, right)
        best = score_G[right].max()
        counts.append([(wrong_G > best).sum(), (wrong_G == best).sum(), (score_G[right] == best).sum()])
    return np.array(counts).T


def numbers(ranks: Ranks) -> np.ndarray:
    return np.stack([ranks.better_Q, ranks.wrong_Q, ranks.right_Q])


@pytest.fixture(params=[(1024, 2048), (7, 5)], ids=str)
def tile(request, monkeypatch):
    monkeypatch.setattr(metrics, "TILE", request.param)
    monkeypatch.setattr(metrics, "COUNTED", 2 * request.param[1])
    return request.param


@pytest.mark.parametrize(
    ("held", "dtype", "more"), [(0, torch.float16, 30), (400, torch.float32, 0), (1 << 30, torch.float64, 30)]
)
def test_both_directions_match_counts_over_full_matrix(tile, held, dtype, more, monkeypatch):
    monkeypatch.setattr(metrics, "CACHED", held)
    of_rows = pairs(20, 61, more=more)
    sim_RC = torch.randint(0, 9, (20, 61), generator=torch.Generator().manual_seed(more)).to(dtype)
    before_RC = sim_RC.clone()
    found = rank_both_ways(lambda rows, columns: sim_RC[rows, columns], of_rows)
    np.testing.assert_array_equal(numbers(found[0]), counted(sim_RC.double().numpy(), of_rows))
    np.testing.assert_array_equal(numbers(found[1]), counted(sim_RC.T.double().numpy(), of_rows.transposed()))
    assert found[0].tied > 5
    assert sim_RC.equal(before_RC), "the score's own blocks must not be modified"


def test_each_score_is_computed_once(tile):
    score = CountedScore(torch.rand(20, 61, generator=torch.Generator().manual_seed(0)))
    rank_both_ways(score, pairs(20, 61, more=30))
    assert (score.requests_VT == 1).all()
    assert all(size <= most for size, most in zip(score.largest, tile, strict=True))


def test_only_uncached_right_answer_tiles_are_recomputed(monkeypatch):
    monkeypatch.setattr(metrics, "TILE", (5, 7))
    monkeypatch.setattr(metrics, "CACHED", 5 * 7 * 4)
    score = CountedScore(torch.rand(20, 60, generator=torch.Generator().manual_seed(0)))
    of_rows = pairs(20, 60, more=0)
    rank_both_ways(score, of_rows)
    twice_RC = np.zeros((20, 60), bool)
    for row, column in zip(np.arange(60) * 20 // 60, np.arange(60), strict=True):
        twice_RC[row // 5 * 5 : row // 5 * 5 + 5, column // 7 * 7 : column // 7 * 7 + 7] = True
    twice_RC[:5, :7] = False  # the first tile fits in the cache
    np.testing.assert_array_equal(score.requests_VT, 1 + twice_RC)
