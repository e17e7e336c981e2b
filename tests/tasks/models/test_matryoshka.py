"""Matryoshka sets: loss over nested prefixes of vectors, and evaluation with fewer vectors."""

from dataclasses import replace

import pytest
import torch
from corpora import make_corpus
from small_models import batch_of, small_model
from untrained_runs import track_untrained

from polypool.pipelines.models.trained import load
from polypool.tasks.objectives.objective import batch_positives
from polypool.tasks.run import Run

SETS = {
    "aggregator": "map(k=4, heads=2)",
    "similarity": "maxsim",
    "objective": "infonce(learned=True)",
    "model": "matryoshka(vectors='1 2')",
}


def closest(x_VKD: torch.Tensor, y_TLD: torch.Tensor) -> torch.Tensor:
    """Return maxsim of sets without padding, pair by pair."""
    rows = [[(x @ y.T) for y in y_TLD] for x in x_VKD]
    return torch.stack(
        [torch.stack([(s.amax(1).mean() + s.amax(0).mean()) / 2 for s in row]) for row in rows]
    )


def test_matryoshka_loss_averages_nested_prefixes():
    model, batch = (
        small_model(**SETS, text_aggregator="map(k=3, heads=2)").eval(),
        batch_of(0, 7, 20, 3, 30, 12),
    )
    terms = model(batch, epoch=2.0)
    visual, text = model.encode_visual(batch).vectors, model.encode_text(batch).vectors
    assert (visual.shape[1], text.shape[1]) == (4, 3)
    positive_VT = batch_positives(batch["item"], batch["row"])
    losses = {
        k: model.objective(closest(visual[:, :k], text[:, :k]), batch["row"], positive_VT, epoch=2.0)["loss"]
        for k in (1, 2, 4)
    }
    torch.testing.assert_close(terms["loss"], sum(losses.values()) / 3)
    for k in (1, 2):
        torch.testing.assert_close(terms[f"loss_{k}"], losses[k])
    assert len({round(float(loss.detach()), 6) for loss in losses.values()}) == 3


@pytest.fixture(scope="module")
def run(home) -> Run:
    return replace(make_corpus(home), **SETS)


@pytest.mark.parametrize("how", ["", "-qbnorm"])
def test_evaluation_uses_requested_number_of_vectors(run, how):
    trained = load(track_untrained(run))
    found = trained.evaluate(f"whole-vectors2{how}")
    assert found.protocol == f"whole-vectors2{how}"
    score = trained.adapter.scorer(trained.model, "test").first(2)
    assert score.visual.shape[1] == score.text.shape[1] == 2
    expected = closest(score.visual, score.text)
    torch.testing.assert_close(score(slice(0, 20), slice(0, 40)), expected, atol=1e-5, rtol=0)
    if not how:
        t2i = [int((row > row[i // 2]).sum()) for i, row in enumerate(expected.T)]
        assert found.metrics["t2i/R1"] == pytest.approx(100 * sum(r == 0 for r in t2i) / len(t2i))
    whole = trained.evaluate(f"whole{how}")
    assert found.metrics != whole.metrics
    assert found.item_bytes == score.item_bytes() == whole.item_bytes / 2
