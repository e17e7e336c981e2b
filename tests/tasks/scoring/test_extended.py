"""Retrieval metrics with ECCV Caption's right answers, against the rules written out in loops."""

import csv
from io import StringIO

import numpy as np
import pytest
import torch

from polypool.tasks.datasets.coco_judgments import Extended
from polypool.tasks.scoring import extended
from polypool.tasks.scoring.extended import evaluate_extended, false_negatives, queries_of

DIRECTIONS = ("i2t", "t2i")


class Blocks:
    """Returns blocks of a score matrix, and counts the requests of each score."""

    def __init__(self, sim_NG: torch.Tensor) -> None:
        self.sim_NG, self.times_NG = sim_NG, torch.zeros(sim_NG.shape)

    def __call__(self, images: slice, captions: slice) -> torch.Tensor:
        self.times_NG[images, captions] += 1
        return self.sim_NG[images, captions]


class OfPairs(Blocks):
    """Stub of a cross-encoder, which scores selected pairs."""

    def __call__(self, images: slice, captions: slice) -> torch.Tensor:
        pytest.fail("it is asked for a whole block")

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> torch.Tensor:
        self.times_NG[row_V[:, None], column_T[None]] += 1
        return self.sim_NG[row_V][:, column_T]


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


def of_query(order: list[int], right: set[int], total: int) -> dict[str, float]:
    """Return the metrics of one query, by definition."""
    hits = [sum(item in right for item in order[:rank]) for rank in range(1, total + 1)]
    at_hits = [hits[rank] / (rank + 1) for rank in range(total) if order[rank] in right]
    return {"map_at_r": sum(at_hits) / total, "r_precision": hits[-1] / total, "R1": float(order[0] in right)}


@pytest.mark.parametrize("unknown", [False, True])
def test_extended_metrics_match_explicit_rules(unknown):
    case = Case()
    found = evaluate_extended(Blocks(case.sim_NG), case.asked(case.extended(unknown=unknown)))
    both = 0.0
    for direction in DIRECTIONS:
        expected, rows, errors, missed = {}, case.rows(direction), 0, []
        for query, answers in case.of[direction].items():
            order = np.argsort(-rows[query]).tolist()
            expected[query] = of_query(order, {*answers}, len(answers) + unknown)
            if not case.own(direction, query, order[0]):
                errors += 1
                missed += [query] if order[0] in answers else []
            assert found.first_Q[direction][query] == order[0]
            assert found.rank_Q[direction][query] == min(order.index(item) for item in answers)
        for name in ("map_at_r", "r_precision", "R1"):
            values = np.full(len(rows), np.nan)
            values[list(expected)] = [one[name] for one in expected.values()]
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
    found = evaluate_extended(Blocks(case.sim_NG), case.asked())
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
    blocks, pairs = Blocks(case.sim_NG), OfPairs(case.sim_NG)
    found, alike = (evaluate_extended(score, case.asked()) for score in (blocks, pairs))
    assert (blocks.times_NG == 1).all()
    assert pairs.times_NG.sum() == 11 * len(case.owner_T) + 13 * 30
    assert found.metrics == alike.metrics
