"""Agreement with people's judgments against Kendall's definitions, pair by pair."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from judgment_files import write_flickr8k

from polypool.infra.errors import InputError
from polypool.pipelines.comparison.tables.published_rows import PUBLISHED
from polypool.tasks.datasets.flickr8k_judgments import read_judgments
from polypool.tasks.image_text import ImageText
from polypool.tasks.scoring import agreement
from polypool.tasks.scoring.agreement import deviation, judged_pairs, scores_of, tau
from polypool.tasks.scoring.protocols import PROTOCOLS, protocol_named

FILES = [f"folder/{name}.webp" for name in "abcd"]
COUNT_N = np.array([3, 2, 3, 3])


def explicit_tau(score_P: np.ndarray, rating_PR: np.ndarray, variant: str) -> float:
    """Kendall's tau-b and Stuart's tau-c of single ratings, from all pairs of them."""
    points = [(x, y) for x, of in zip(score_P, rating_PR, strict=True) for y in of]
    agree, in_x, in_y = 0, 0, 0
    for (x, y), (x2, y2) in itertools.combinations(points, 2):
        agree += np.sign(x - x2) * np.sign(y - y2)
        in_x, in_y = in_x + (x != x2), in_y + (y != y2)
    if variant == "b":
        return 100 * agree / np.sqrt(in_x * in_y)
    n, m = len(points), min(len({x for x, _ in points}), len({y for _, y in points}))
    return 100 * 2 * agree / (n * n * (m - 1) / m)


@pytest.mark.parametrize("variant", ["b", "c"])
@pytest.mark.parametrize("ratings", [1, 3])
def test_tau_is_that_of_all_single_ratings(variant, ratings):
    rng = np.random.default_rng(ratings)
    score_P, rating_PR = rng.integers(0, 9, 40) / 8, rng.integers(1, 5, (40, ratings)).astype(float)
    assert tau(score_P, rating_PR, variant) == pytest.approx(explicit_tau(score_P, rating_PR, variant))
    assert tau(np.ones(40), rating_PR, variant) == 0.0


def test_pairs_are_found_by_file_and_number(tmp_path):
    pairs = [("a", "b#1"), ("b", "a#2"), ("d", "d#0"), ("c", "b#2"), ("x", "a#0"), ("a", "x#0"), ("c", "d#2")]
    write_flickr8k(tmp_path, expert=[(*pair, (1, 1, n % 4 + 1)) for n, pair in enumerate(pairs)])
    judgments = read_judgments(tmp_path, "expert")
    others = judged_pairs(judgments, files=FILES, count_N=COUNT_N, own=False)
    assert (others.item_P.tolist(), others.caption_P.tolist()) == ([0, 1, 2], [4, 2, 10])
    assert (others.rating_PR[:, 2].tolist(), others.unknown, others.own) == ([1, 2, 3], 3, 1)
    with_own = judged_pairs(judgments, files=FILES, count_N=COUNT_N, own=True)
    assert (with_own.item_P.tolist(), with_own.caption_P.tolist()) == ([0, 1, 3, 2], [4, 2, 8, 10])
    with pytest.raises(InputError, match=r"none of the 7 judged pairs, such as that of a\.jpg"):
        judged_pairs(judgments, files=["y.jpg", "z.jpg"], count_N=np.array([3, 3]), own=True)


def test_each_pair_has_its_own_score(tmp_path, monkeypatch):
    monkeypatch.setattr(agreement, "_CHUNK", 22)  # two images at a time
    write_flickr8k(
        tmp_path, expert=[("d", "b#1", (1, 1, 1)), ("a", "c#0", (1, 1, 1)), ("c", "a#2", (1, 1, 1))]
    )
    pairs = judged_pairs(read_judgments(tmp_path, "expert"), files=FILES, count_N=COUNT_N, own=False)
    sim_NT = torch.arange(44.0).view(4, 11)
    found_P = scores_of(lambda items, captions: sim_NT[items, captions], pairs, items=4, captions=11)
    assert found_P.tolist() == [3 * 11 + 4, 5, 2 * 11 + 2]
    with pytest.raises(InputError, match="scores that are no numbers"):
        scores_of(lambda items, captions: sim_NT[items, captions] / 0, pairs, items=4, captions=11)


def test_the_interval_is_over_images_with_all_their_pairs():
    rng = np.random.default_rng(0)
    item_P, rating_PR = np.repeat(rng.permutation(60), 5), rng.integers(1, 5, (300, 1)).astype(float)
    score_P = rating_PR[:, 0] + rng.normal(size=300)
    over_images = deviation(score_P, rating_PR, item_P, "c")
    order_P = rng.permutation(300)
    assert over_images == deviation(score_P, rating_PR, item_P, "c")
    assert over_images == pytest.approx(
        deviation(score_P[order_P], rating_PR[order_P], item_P[order_P], "c"), rel=1e-9
    )
    alike_P = rng.normal(size=60)[item_P] + 0.1 * rng.normal(size=300)
    rated_PR = np.round(alike_P)[:, None]
    by_image, by_pair = (deviation(alike_P, rated_PR, of, "b") for of in (item_P, np.arange(300)))
    assert by_image > 1.5 * by_pair, "pairs of an image are alike, and count as one"


@pytest.mark.parametrize(("kind", "variant"), [("expert", "c"), ("crowd", "b")])
def test_a_run_is_scored(tmp_path, monkeypatch, kind, variant):
    run = make_corpus(tmp_path, images=tmp_path / "pictures")
    ids, rng = [str(n) for n in range(64, 84)], np.random.default_rng(0)
    pairs = [(str(a), f"{b}#1") for a, b in zip(ids, [*ids[1:], ids[0]], strict=True)] + [
        (ids[0], f"{ids[0]}#0")
    ]
    marks = [tuple(rng.integers(1, 5, 3).tolist()) for _ in pairs]
    said = [tuple(rng.integers(1, 4, 2).tolist()) for _ in pairs]
    folder = write_flickr8k(
        tmp_path / "judged",
        expert=[(*pair, of) for pair, of in zip(pairs, marks, strict=True)],
        crowd=[(*pair, of) for pair, of in zip(pairs, said, strict=True)],
    )
    name = f"flickr8k-{kind}"
    small = replace(PROTOCOLS[name], items=None, captions=None)
    monkeypatch.setitem(PROTOCOLS, name, small)
    torch.manual_seed(0)
    adapter = ImageText(run, flickr8k=str(folder))
    model = adapter.model()
    found = adapter.evaluate(model, "test", name)
    sim_NT = adapter.scorer(model, "test")(slice(0, 20), slice(0, 40))
    score_P = np.array([float(sim_NT[n, 2 * ((n + 1) % 20) + 1]) for n in range(20)])
    rating_PR = np.array(marks if kind == "expert" else [[yes / (yes + no)] for yes, no in said])
    if kind == "crowd":
        score_P = np.append(score_P, float(sim_NT[0, 0]))
    rating_PR = rating_PR[: len(score_P)]
    metrics = found.metrics
    assert metrics[f"tau_{variant}"] == pytest.approx(explicit_tau(score_P, rating_PR, variant), abs=1e-3)
    assert metrics["low"] < metrics[f"tau_{variant}"] < metrics["high"]
    assert (metrics["pairs"], metrics["ratings"]) == (len(score_P), rating_PR.size)
    assert metrics["own_left_out"] == (kind == "expert")
    assert (found.primary.name, found.primary.chance) == (f"tau_{variant}", 0.0)
    np.testing.assert_allclose(found.per_query["score"], score_P, rtol=1e-5)
    assert found.per_query["image_id"][:3].tolist() == ids[:3]
    assert f"{name}/{found.primary.name}" in PUBLISHED


def test_what_cannot_be_scored_is_refused(tmp_path):
    adapter = ImageText(make_corpus(tmp_path), flickr8k=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="'flickr8k-expert' is defined on 1,000 items and 5,000 captions"):
        adapter.check_protocol("flickr8k-expert", "test")
    with pytest.raises(
        InputError, match="ranks nothing: it scores the pairs that people judged; it cannot be re"
    ):
        protocol_named("flickr8k-crowd-rerank10")
