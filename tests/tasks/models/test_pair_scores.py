"""Scores of a split by a model that looks at every pair: of blocks and of single pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pair_models import MODELS, batch_of, model_of

from polypool.tasks.models import pair_encoder
from polypool.tasks.models.pair_encoder import PairScores
from polypool.tasks.scoring.scores import PairsScore, mean_score

ROW_P, COLUMN_P = np.array([0, 2, 2, 1, 0, 3]), np.array([4, 0, 1, 1, 0, 3])


def sets_of(cross: str, aggregator: str, *, seed: int = 0) -> PairScores:
    """Scores of four images and five captions of different lengths."""
    model, batch = model_of(cross, aggregator).eval(), batch_of(0, 7, 20, 33, 41)
    if seed:
        for parameter in model.parameters():
            parameter.data.add_(0.1)
    visual, text = model.encode_visual(batch), model.encode_text(batch)
    visual, text = (
        [x_ND[mask_N].detach() for x_ND, mask_N in zip(*of, strict=True)] for of in (visual, text)
    )
    assert len({len(x_MD) for x_MD in text}) > 1
    return PairScores(model, visual=visual[:4], text=text)


class Counted:
    """A model of pairs, and how many it was given."""

    def __init__(self, model) -> None:
        self.model, self.pairs = model, 0

    def score(self, visual, text):
        self.pairs += len(visual.x_BND) * len(text.x_BND)
        return self.model.score(visual, text)

    def score_pairs(self, visual, text):
        assert len(visual.x_BND) == len(text.x_BND)
        self.pairs += len(visual.x_BND)
        return self.model.score_pairs(visual, text)


@pytest.mark.parametrize(("cross", "aggregator"), MODELS)
@pytest.mark.parametrize(("at_once", "side"), [(1024, 16), (4, 16), (1024, 1)])
def test_single_pairs_score_what_they_score_in_a_block(cross, aggregator, at_once, side, monkeypatch):
    monkeypatch.setattr(pair_encoder, "PAIRS", at_once)
    score, block = sets_of(cross, aggregator), sets_of(cross, aggregator)
    score.model.side = side
    expected_VT = block(slice(None), slice(None))
    torch.testing.assert_close(score.of_pairs(ROW_P, COLUMN_P), expected_VT[ROW_P, COLUMN_P])
    some = np.array([3, 1]), np.array([4, 0, 2])
    torch.testing.assert_close(score.of_all(*some), expected_VT[np.ix_(*some)])


def test_each_pair_is_computed_once():
    score = sets_of(*MODELS[0])
    score.model = counted = Counted(score.model)
    first_P = score.of_pairs(ROW_P, COLUMN_P).clone()
    assert counted.pairs == len(ROW_P)
    assert score.of_pairs(ROW_P[::-1].copy(), COLUMN_P[::-1].copy()).equal(first_P.flip(0))
    score.of_pairs(np.array([0, 1]), np.array([4, 4]))
    assert counted.pairs == len(ROW_P) + 1
    assert score.of_pairs(np.empty(0, int), np.empty(0, int)).shape == (0,)

    score = sets_of(*MODELS[0])
    score.model = counted = Counted(score.model)
    first_VT = score(slice(0, 2), slice(None)).clone()
    score(slice(2, 4), slice(None))
    assert score(slice(None), slice(None))[:2].equal(first_VT)
    score.of_pairs(ROW_P, COLUMN_P)
    score.of_all(np.array([1, 3]), np.array([0]))
    assert counted.pairs == 4 * 5


def test_the_mean_of_several_scores_pairs_where_all_of_them_do():
    one, two = sets_of(*MODELS[0]), sets_of(*MODELS[0], seed=1)
    together = mean_score([one, two])
    assert isinstance(together, PairsScore)
    expected_P = (one.of_pairs(ROW_P, COLUMN_P) + two.of_pairs(ROW_P, COLUMN_P)) / 2
    assert not expected_P.equal(one.of_pairs(ROW_P, COLUMN_P))
    torch.testing.assert_close(together.of_pairs(ROW_P, COLUMN_P), expected_P)
    rows, columns = np.array([2, 0]), np.array([1, 3])
    torch.testing.assert_close(
        together.of_all(rows, columns), together(slice(None), slice(None))[np.ix_(rows, columns)]
    )
    assert not isinstance(mean_score([one, lambda rows, columns: one(rows, columns)]), PairsScore)
