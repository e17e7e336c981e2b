"""mAP@R and R-Precision against their definitions, written out in loops over sorted results."""

from itertools import permutations

import numpy as np
import pytest
import torch

from polypool.tasks.scoring import extended
from polypool.tasks.scoring.extended import chance_precision, precision_at_r
from polypool.tasks.scoring.metrics import Positives


def of_order(order: list[int], right: set[int], total: int) -> tuple[float, float]:
    """Return both metrics of one query's ordered results, by definition."""
    precisions, hits = [], 0
    for rank, item in enumerate(order[:total], start=1):
        hits += item in right
        precisions.append(hits / rank if item in right else 0.0)
    return sum(precisions) / total, hits / total


def of_scores(scores: list[float], right: set[int], total: int) -> np.ndarray:
    """Return both metrics averaged over all orders that sort the scores."""
    best_first = sorted(scores, reverse=True)
    every = [list(order) for order in permutations(range(len(scores)))]
    orders = [order for order in every if [scores[item] for item in order] == best_first]
    return np.mean([of_order(order, right, total) for order in orders], axis=0)


def drawn(
    seed: int, *, queries: int, gallery: int, most: int
) -> tuple[list[set[int]], Positives, np.ndarray]:
    """Return random right answers, and R, which is one above their number for every other query."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, queries)
    right = [set(rng.choice(gallery, size, replace=False).tolist()) for size in sizes]
    pairs = np.array([(query, item) for query, items in enumerate(right) for item in items])
    positives = Positives.from_pairs(*pairs.T, queries=queries, gallery=gallery)
    return right, positives, np.array([len(items) + query % 2 for query, items in enumerate(right)])


@pytest.mark.parametrize(("seed", "chunk"), [(0, 1 << 22), (1, 20)])
def test_precision_averages_over_orders_of_ties(monkeypatch, seed, chunk):
    monkeypatch.setattr(extended, "_CHUNK", chunk)
    rng = np.random.default_rng(seed)
    score_AG = rng.integers(0, 3, (12, 6)).astype(np.float32)
    right, positives, total_A = drawn(seed, queries=12, gallery=6, most=5)
    total_A[0] += 4  # more right answers than results
    map_A, precision_A, tied_A = precision_at_r(torch.from_numpy(score_AG), positives, total_A)
    for query, items in enumerate(right):
        scores, total = score_AG[query].tolist(), int(total_A[query])
        assert (map_A[query], precision_A[query]) == pytest.approx(of_scores(scores, items, total))
        reached = set(sorted(scores, reverse=True)[:total])
        mixed = any(
            len({item in items for item, score in enumerate(scores) if score == level}) == 2
            for level in reached
        )
        assert tied_A[query] == mixed


def test_chance_precision_equals_that_of_constant_scores():
    right, positives, total_A = drawn(0, queries=9, gallery=6, most=6)
    total_A[0] += 3
    found = precision_at_r(torch.zeros(9, 6), positives, total_A)
    expected = np.mean(
        [of_scores([0.0] * 6, items, int(total)) for items, total in zip(right, total_A, strict=True)], axis=0
    )
    assert [x_A.mean() for x_A in found[:2]] == pytest.approx(expected)
    assert chance_precision(positives, total_A) == pytest.approx(100 * expected)
