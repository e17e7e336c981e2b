"""Retrieval metrics with ECCV Caption's right answers, against the rules written out in loops."""

import csv
from io import StringIO
from itertools import permutations

import numpy as np
import pytest
import torch
from score_batches import CountedScore

from polypool.tasks.datasets.coco_judgments import Extended
from polypool.tasks.scoring import extended
from polypool.tasks.scoring.extended import (
    chance_precision,
    evaluate_extended,
    false_negatives,
    precision_at_r,
    queries_of,
)
from polypool.tasks.scoring.metrics import Positives

DIRECTIONS = ("i2t", "t2i")


class PairScore(CountedScore):
    """Stub of a cross-encoder, which scores selected pairs."""

    def __call__(self, images: slice, captions: slice) -> torch.Tensor:
        pytest.fail("a whole block was requested")

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> torch.Tensor:
        self.requests_VT[row_V[:, None], column_T[None]] += 1
        return self.sim_VT[row_V][:, column_T]


class Case:
    """A synthetic split of 30 images with 2 or 3 captions; 11 images and 13 captions are queries."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.owner_T = np.repeat(np.arange(30), rng.integers(2, 4, 30))
        self.image_ids = np.array([str(500 + 3 * i) for i in range(30)])
        self.caption_ids = [str(9000 + 7 * i) for i in range(len(self.owner_T))]
        self.texts = [f"caption {i}, of image {owner}" for i, owner in enumerate(self.owner_T)]
        self.sim_NG = torch.from_numpy(rng.normal(size=(30, len(self.owner_T))))
        self.sim_NG[self.owner_T, np.arange(len(self.owner_T))] += 1.5
        self.of = {"i2t": {}, "t2i": {}}
        for image in rng.permutation(30)[:11].tolist():
            more = rng.choice(len(self.owner_T), 6, replace=False)
            own = np.flatnonzero(self.owner_T == image)[1:]  # one of COCO's own captions is not right
            self.of["i2t"][image] = sorted({*more.tolist(), *own.tolist()} - {int(own[0]) - 1})
        for caption in rng.permutation(len(self.owner_T))[:13].tolist():
            self.of["t2i"][caption] = sorted({int(self.owner_T[caption]), *rng.choice(30, 4).tolist()})

    def extended(self, *, unknown: bool = False) -> Extended:
        more = ("1",) if unknown else ()
        images, captions = self.image_ids, self.caption_ids
        of_images, of_captions = (
            {asked[q]: tuple(found[a] for a in answers) + more for q, answers in self.of[direction].items()}
            for direction, asked, found in (("i2t", images, captions), ("t2i", captions, images))
        )
        unasked = {"2": ("3",)} if unknown else {}
        return Extended(image_to_caption=of_images, caption_to_image=of_captions | unasked)

    def asked(self, extended: Extended | None = None):
        ids = {"image_ids": self.image_ids, "caption_ids": self.caption_ids}
        return queries_of(extended or self.extended(), **ids, owner_T=self.owner_T)

    def rows(self, direction: str) -> np.ndarray:
        return (self.sim_NG if direction == "i2t" else self.sim_NG.T).numpy()

    def own(self, direction: str, query: int, item: int) -> bool:
        image, caption = (query, item) if direction == "i2t" else (item, query)
        return bool(self.owner_T[caption] == image)


def of_order(order: list[int], right: set[int], total: int) -> tuple[float, float]:
    """Return both metrics of one query's ordered results, by definition."""
    precisions, hits = [], 0
    for rank, item in enumerate(order[:total], start=1):
        hits += item in right
        precisions.append(hits / rank if item in right else 0.0)
    return sum(precisions) / total, hits / total


@pytest.mark.parametrize("unknown", [False, True])
def test_extended_metrics_match_explicit_rules(unknown):
    case = Case()
    found = evaluate_extended(CountedScore(case.sim_NG), case.asked(case.extended(unknown=unknown)))
    both = 0.0
    for direction in DIRECTIONS:
        expected, rows, errors, missed = {}, case.rows(direction), 0, []
        for query, answers in case.of[direction].items():
            order = np.argsort(-rows[query]).tolist()
            expected[query] = (
                *of_order(order, {*answers}, len(answers) + unknown),
                float(order[0] in answers),
            )
            if not case.own(direction, query, order[0]):
                errors += 1
                missed += [query] if order[0] in answers else []
            assert found.first_Q[direction][query] == order[0]
            assert found.rank_Q[direction][query] == min(order.index(item) for item in answers)
        for place, name in enumerate(("map_at_r", "r_precision", "R1")):
            values = np.full(len(rows), np.nan)
            values[list(expected)] = [one[place] for one in expected.values()]
            np.testing.assert_allclose(found.of_query[f"{direction}_{name}"], values, atol=1e-12)
            assert found.metrics[f"{direction}/{name}"] == pytest.approx(100 * np.nanmean(values))
        assert found.metrics[f"{direction}/queries"] == len(expected)
        assert found.metrics[f"{direction}/coco_errors"] == errors > len(missed)
        assert found.metrics[f"{direction}/false_negatives"] == len(missed)
        assert found.false_negative_Q[direction].nonzero()[0].tolist() == sorted(missed)
        assert np.isnan(found.rank_Q[direction]).sum() == (found.first_Q[direction] == -1).sum() > 0
        both += found.metrics[f"{direction}/map_at_r"] / 2
    assert found.metrics["map_at_r"] == pytest.approx(both)
    assert found.metrics["ties"] == 0
    assert sum(found.metrics[f"{direction}/false_negatives"] for direction in DIRECTIONS) > 0


def test_false_negatives_are_listed_with_top_result():
    case = Case()
    found = evaluate_extended(CountedScore(case.sim_NG), case.asked())
    table = false_negatives(found, image_ids=case.image_ids, caption_ids=case.caption_ids, texts=case.texts)
    rows = list(csv.DictReader(StringIO(table.decode(), newline="")))
    ids = {"i2t": (case.image_ids, case.caption_ids), "t2i": (case.caption_ids, case.image_ids)}
    expected = []
    for direction in DIRECTIONS:
        queries, gallery = ids[direction]
        for query in found.false_negative_Q[direction].nonzero()[0]:
            first = found.first_Q[direction][query]
            caption = first if direction == "i2t" else query
            expected.append([direction, queries[query], gallery[first], case.texts[caption]])
    assert [list(row.values()) for row in rows] == expected
    assert {row[0] for row in expected} == {"i2t", "t2i"}


@pytest.mark.parametrize("chunk", [200, 1 << 22])
def test_scores_are_computed_once_and_pairs_only_for_queries(monkeypatch, chunk):
    monkeypatch.setattr(extended, "_CHUNK", chunk)
    case = Case()
    blocks, pairs = CountedScore(case.sim_NG), PairScore(case.sim_NG)
    found, alike = (evaluate_extended(score, case.asked()) for score in (blocks, pairs))
    assert (blocks.requests_VT == 1).all()
    assert pairs.requests_VT.sum() == 11 * len(case.owner_T) + 13 * 30
    assert found.metrics == alike.metrics


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
