import itertools

import numpy as np
import pytest
import torch

from polypool.infra.errors import InputError
from polypool.tasks.scoring.metrics import (
    Positives,
    Ranks,
    chance_recall,
    rank_queries,
    retrieval_metrics,
)


def owners(images: int, captions: int = 5) -> np.ndarray:
    return np.repeat(np.arange(images), captions)


def both_ways(sim_VT: np.ndarray | torch.Tensor, owner_T: np.ndarray, **options) -> list[Ranks]:
    of_images = Positives.of_images(owner_T, images=len(sim_VT))
    return [
        rank_queries(sim_VT, of_images, **options),
        rank_queries(sim_VT.T, of_images.transposed(), **options),
    ]


@pytest.mark.parametrize("case", ["weak", "half_median", "folds"])
def test_ranks_and_metrics_match_recorded_outputs(golden, case):
    with np.load(golden / "retrieval_eval.npz", allow_pickle=False) as recorded:
        z = {key.split("/")[1]: recorded[key] for key in recorded.files if key.startswith(f"{case}/")}
    sim_VT = torch.from_numpy(z["sims_u16"].astype(np.float32) / 65536)
    ranks = dict(zip(("i2t", "t2i"), both_ways(sim_VT, owners(len(sim_VT))), strict=True))
    metrics = retrieval_metrics(ranks["i2t"], ranks["t2i"])
    for direction in ("i2t", "t2i"):
        np.testing.assert_array_equal(ranks[direction].rank_Q, z[f"{direction}_ranks"])
        ours = [metrics[f"{direction}/{name}"] for name in ("R1", "R5", "R10", "medr", "meanr")]
        np.testing.assert_allclose(ours, z[f"{direction}_metrics"], rtol=0, atol=1e-9)
    if "full_rsum" in z:
        assert metrics["rsum"] == pytest.approx(float(z["full_rsum"]), abs=1e-9)


def places_by_definition(score_G: np.ndarray, right: list[int]) -> np.ndarray:
    """Return the best rank of a right answer in every order of the gallery that sorts its scores."""
    best = score_G[right].max()
    orders = itertools.permutations(np.flatnonzero(score_G == best))
    places = [min(place for place, item in enumerate(order) if item in right) for order in orders]
    return (score_G > best).sum() + np.array(places)


def test_ties_average_over_all_orders():
    rng = np.random.default_rng(0)
    score_QG = rng.integers(0, 3, (40, 7)).astype(np.float32)
    answers = [sorted(rng.choice(7, rng.integers(1, 4), replace=False).tolist()) for _ in range(40)]
    pairs = np.array([(q, item) for q, items in enumerate(answers) for item in items])
    positives = Positives.from_pairs(*pairs.T, queries=40, gallery=7)
    found = rank_queries(torch.from_numpy(score_QG), positives, chunk=20)
    places = [places_by_definition(score_QG[q], answers[q]) for q in range(40)]
    np.testing.assert_allclose(found.rank_Q, [of.mean() for of in places])
    for k in range(1, 9):
        np.testing.assert_allclose(found.recall_Q(k), [(of < k).mean() for of in places], atol=1e-12)
    assert any(0 < (of < 2).mean() < 1 for of in places)
    best_Q = np.array([row[right].max() for row, right in zip(score_QG, answers, strict=True)])
    level_QG = score_QG == best_Q[:, None]
    level_QG[tuple(pairs.T)] = False
    assert found.tied == level_QG.any(axis=1).sum() > 0


def test_ranks_agree_across_chunks_inputs_and_dtypes():
    sim_VT = torch.randn(30, 150, generator=torch.Generator().manual_seed(0)).half()
    owner_T = owners(30)
    whole = both_ways(sim_VT, owner_T)
    for other in (sim_VT.float(), sim_VT.double()):
        for chunk in (1, 700, 10**9):
            for ours, theirs in zip(whole, both_ways(other, owner_T, chunk=chunk), strict=True):
                np.testing.assert_array_equal(ours.rank_Q, theirs.rank_Q)

    asked = []

    def score(start: int, stop: int) -> torch.Tensor:
        asked.append((start, stop))
        return sim_VT[start:stop]

    found = rank_queries(score, Positives.of_images(owner_T, images=30), chunk=150 * 8)
    np.testing.assert_array_equal(found.rank_Q, whole[0].rank_Q)
    assert asked == [(0, 8), (8, 16), (16, 24), (24, 30)]


def test_nan_error_names_first_row_and_column():
    sim_VT = torch.zeros(10, 50)
    sim_VT[7, 3] = sim_VT[8, 0] = torch.nan
    with pytest.raises(InputError, match="the score in row 7, column 3 is NaN"):
        rank_queries(sim_VT, Positives.of_images(owners(10), images=10), chunk=150)


def test_queries_without_right_answer_are_refused_or_skipped():
    positives = Positives.from_pairs([0, 0, 2], [1, 1, 0], queries=4, gallery=2)
    assert positives.count_Q.tolist() == [1, 0, 1, 0]
    sim_QG = torch.tensor([[1.0, 0.0], [9, 9], [1, 0], [9, 9]])
    with pytest.raises(InputError, match="query 1 has no right answer, and 2 of 4"):
        rank_queries(sim_QG, positives)
    with pytest.raises(InputError, match="none of the 0 queries has a right answer"):
        rank_queries(torch.zeros(0, 0), Positives.of_images(owners(0), images=0), skip=True)
    assert rank_queries(sim_QG, positives, skip=True).rank_Q.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("case", ["shared", "half"])
def test_shared_captions_match_recorded_hgr_outputs(golden, case):
    with np.load(golden / "hgr_eval.npz", allow_pickle=False) as recorded:
        z = {key.split("/")[1]: recorded[key] for key in recorded.files if key.startswith(f"{case}/")}
    video_P, text_P = np.nonzero(z["positives"])
    queries, gallery = z["positives"].shape
    sim_QG = torch.from_numpy(z["scores_u24"].astype(np.float32) / 2**24)
    ranks = [
        rank_queries(sim_QG, Positives.from_pairs(video_P, text_P, queries=queries, gallery=gallery)),
        rank_queries(sim_QG.T, Positives.from_pairs(text_P, video_P, queries=gallery, gallery=queries)),
    ]
    metrics = retrieval_metrics(*ranks, directions=("v2t", "t2v"), floor_median=False)
    for direction in ("v2t", "t2v"):
        ours = [metrics[f"{direction}/{name}"] for name in ("R1", "R5", "R10", "medr", "meanr")]
        np.testing.assert_allclose(ours, z[direction], rtol=0, atol=1e-9)
    assert metrics["rsum"] == pytest.approx(float(z["rsum"]), abs=1e-9)


def test_chance_recall_averages_over_all_orders():
    positives = Positives.from_pairs([0, 0, 0, 1], [0, 1, 2, 4], queries=2, gallery=5)
    orders = list(itertools.permutations(range(5)))
    for k in (1, 2, 4, 10):
        hits = [[any(item in right for item in order[:k]) for order in orders] for right in ({0, 1, 2}, {4})]
        assert chance_recall(positives, ks=(k,))[f"R{k}"] == pytest.approx(100 * np.mean(hits))
