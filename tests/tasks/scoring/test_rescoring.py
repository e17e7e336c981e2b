"""Rescoring against the definitions, in loops over queries and items, float64."""

import numpy as np
import pytest
import torch

from polypool.infra.errors import InputError
from polypool.tasks.scoring import rescoring
from polypool.tasks.scoring.evaluation import evaluate_protocol
from polypool.tasks.scoring.metrics import Positives, rank_queries
from polypool.tasks.scoring.protocols import (
    ScoringProtocol,
    is_for_test,
    protocol_named,
    warnings_of,
)
from polypool.tasks.scoring.scores import QueryBank, ScoreWithBank, mean_bank

ITEMS, OWNER_T = 14, np.repeat(np.arange(14), 3)
TEXTS = [f"caption {t - 2 * (t % 7 == 5)}" for t in range(42)]  # six captions occur twice
TRAINING = (23, 31)


def blocks_of(sim):
    return lambda rows, columns: sim[rows, columns]


@pytest.fixture
def scores() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines of a split, of training items with its captions, and of its items with training captions."""
    rng = np.random.default_rng(0)
    hub_D = rng.normal(size=6)  # a hub, close to all queries
    item_VD = rng.normal(size=(ITEMS, 6)) + hub_D * (np.arange(ITEMS) < 3)[:, None]
    sides = (
        item_VD,
        item_VD[OWNER_T] + 0.8 * rng.normal(size=(len(OWNER_T), 6)),
        rng.normal(size=(TRAINING[0], 6)) + 0.5 * hub_D,
        rng.normal(size=(TRAINING[1], 6)) + 0.5 * hub_D,
    )
    item, text, more_items, more_texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in sides)
    return item @ text.T, more_items @ text.T, item @ more_texts.T


def dual_softmax(sim_QG: np.ndarray) -> np.ndarray:
    out_QG = np.empty_like(sim_QG)
    for q, g in np.ndindex(*sim_QG.shape):
        fits_Q = np.exp(100 * sim_QG[:, g])
        out_QG[q, g] = sim_QG[q, g] * fits_Q[q] / fits_Q.sum()
    return out_QG


def qb_norm(sim_QG: np.ndarray, bank_BG: np.ndarray) -> np.ndarray:
    """As Bogolin et al. define it, without logarithms."""
    active, out_QG = {int(np.argmax(row_G)) for row_G in bank_BG}, np.exp(20 * sim_QG)
    for q, row_G in enumerate(sim_QG):
        if int(np.argmax(row_G)) in active:
            for g in range(len(row_G)):
                out_QG[q, g] = np.exp(20 * row_G[g]) / np.exp(20 * bank_BG[:, g]).sum()
    return out_QG


def explicit_ranks(sim_VT, bank_BT, bank_VB, how: str) -> tuple[np.ndarray, np.ndarray]:
    of_items = Positives.of_images(OWNER_T, images=ITEMS)
    if how == "dsl":
        sides = dual_softmax(sim_VT), dual_softmax(sim_VT.T)
    else:
        sides = qb_norm(sim_VT, bank_BT), qb_norm(sim_VT.T, bank_VB.T)
    both = zip(sides, (of_items, of_items.transposed()), strict=True)
    return tuple(rank_queries(torch.from_numpy(side), positives).rank_Q for side, positives in both)


def banked(sim_VT, bank_BT, bank_VB) -> ScoreWithBank:
    split, items, captions = (blocks_of(torch.from_numpy(x)) for x in (sim_VT, bank_BT, bank_VB))
    return ScoreWithBank(score=split, bank=QueryBank(items=items, captions=captions, sizes=TRAINING))


@pytest.mark.parametrize(("how", "chunk"), [("dsl", 90), ("qbnorm", 90), ("qbnorm", 1 << 21)])
def test_rescored_ranks_match_definition(scores, how, chunk, monkeypatch):
    monkeypatch.setattr(rescoring, "_CHUNK", chunk)
    found = evaluate_protocol(protocol_named(f"whole-{how}"), banked(*scores), OWNER_T, ITEMS)
    i2t_Q, t2i_Q = explicit_ranks(*scores, how)
    np.testing.assert_array_equal(found.ranks_i2t, i2t_Q)
    np.testing.assert_array_equal(found.ranks_t2i, t2i_Q)
    plain = evaluate_protocol(protocol_named("whole"), banked(*scores), OWNER_T, ITEMS)
    assert not np.array_equal(plain.ranks_t2i, t2i_Q)
    assert not np.array_equal(plain.ranks_i2t, i2t_Q)


@pytest.mark.parametrize("how", ["dsl", "qbnorm"])
def test_distinct_captions_are_rescored_as_own_gallery(scores, how):
    sim_VT, bank_BT, bank_VB = scores
    found = evaluate_protocol(protocol_named(f"distinct-{how}"), banked(*scores), OWNER_T, ITEMS, texts=TEXTS)
    kept = [TEXTS.index(text) for text in dict.fromkeys(TEXTS)]
    places = [kept.index(TEXTS.index(text)) for text in TEXTS]
    of_items = Positives.from_pairs(OWNER_T, places, queries=ITEMS, gallery=len(kept))
    sim_VG = sim_VT[:, kept]
    side_VG = dual_softmax(sim_VG) if how == "dsl" else qb_norm(sim_VG, bank_BT[:, kept])
    np.testing.assert_array_equal(found.ranks_i2t, rank_queries(torch.from_numpy(side_VG), of_items).rank_Q)
    side_GV = dual_softmax(sim_VG.T) if how == "dsl" else qb_norm(sim_VG.T, bank_VB.T)
    np.testing.assert_array_equal(
        found.ranks_t2i, rank_queries(torch.from_numpy(side_GV), of_items.transposed()).rank_Q
    )


@pytest.mark.parametrize("how", ["dsl", "qbnorm"])
def test_folds_are_rescored_separately(scores, how):
    sim_VT, bank_BT, bank_VB = scores
    halves = ScoringProtocol(name="halves", about="", folds=2, rescore=how)
    found = evaluate_protocol(halves, banked(*scores), OWNER_T, ITEMS)
    for fold, (items, captions) in enumerate([(slice(0, 7), slice(0, 21)), (slice(7, 14), slice(21, 42))]):
        part = sim_VT[items, captions], bank_BT[:, captions], bank_VB[items]
        alone = evaluate_protocol(protocol_named(f"whole-{how}"), banked(*part), OWNER_T[:21], 7)
        np.testing.assert_array_equal(found.ranks_i2t[7 * fold : 7 * fold + 7], alone.ranks_i2t)
        np.testing.assert_array_equal(found.ranks_t2i[21 * fold : 21 * fold + 21], alone.ranks_t2i)


def test_dual_softmax_of_negative_scores_is_refused(scores):
    distances = banked(*(sim - 1.5 for sim in scores))
    with pytest.raises(InputError, match=r"all scores are negative, .* \(--rescore qbnorm\)"):
        evaluate_protocol(protocol_named("whole-dsl"), distances, OWNER_T, ITEMS)
    assert evaluate_protocol(protocol_named("whole-qbnorm"), distances, OWNER_T, ITEMS).metrics["rsum"] > 0


def test_ensemble_bank_averages_scores(scores):
    one, other = (banked(*(factor * sim for sim in scores)).bank for factor in (1.0, -0.5))
    mean = mean_bank([one, other])
    everything = slice(0, 5), slice(0, 7)
    np.testing.assert_allclose(mean.items(*everything), scores[1][:5, :7] / 4)
    np.testing.assert_allclose(mean.captions(*everything), scores[2][:5, :7] / 4)
    assert mean.sizes == TRAINING


def test_rescoring_protocol_names_and_warnings():
    found = protocol_named("f8k-1k-qbnorm")
    assert (found.name, found.rescore, found.items, found.warning) == ("f8k-1k-qbnorm", "qbnorm", 1000, "")
    assert protocol_named("coco-1k-5fold-dsl").folds == 5
    assert [is_for_test(name) for name in ("f8k-1k-dsl", "val-1k-dsl", "vqa-dsl")] == [True, False, False]
    (warning,) = warnings_of(["whole", "whole-dsl", "whole-qbnorm", "vqa", "whole-dsl"])
    assert warning.startswith("whole-dsl: dual softmax ranks each query with all other queries")
