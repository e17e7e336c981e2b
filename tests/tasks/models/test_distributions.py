"""Distributions as embeddings: normalised, scored, saved and analysed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from untrained_runs import track_untrained

from polypool.infra.registry import TASKS
from polypool.pipelines.models.run_evaluation import analyse
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.run import Run
from polypool.tasks.scoring.geometry import ablated, alignment, uniformity
from polypool.tasks.similarities.similarity import ClosedFormSampledDistance

PARTS = {
    "aggregator": "probabilistic",
    "text_aggregator": "probabilistic(mean=mean)",
    "objective": "pcmepp",
    "regularisers": ("vib(weight=1e-4)",),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return replace(make_corpus(tmp_path_factory.mktemp("corpus"), test=40), **PARTS, figures=False)


@pytest.fixture(scope="module")
def model(run) -> TrainedModel:
    adapter = TASKS.build(run.task, run)
    torch.manual_seed(0)
    return TrainedModel(run=run, adapter=adapter, model=adapter.model().eval())


@pytest.fixture(scope="module")
def split(model) -> SplitEmbeddings:
    return model.adapter.scorer(model.model, "test")


def test_split_scores_match_closed_form_sampled_distance(split):
    assert isinstance(split.similarity, ClosedFormSampledDistance)
    assert split.visual.shape == (40, 2, 16)
    for side in (split.visual, split.text):
        torch.testing.assert_close(side[:, 0].norm(dim=-1), torch.ones(len(side)))
        assert (side[:, 1].norm(dim=-1) - 1).abs().min() > 0.1, "log-variances must not be normalised"
    (v, s), (t, u) = (side.double().unbind(dim=1) for side in (split.visual, split.text))
    expected_VT = -torch.cdist(v, t).square() - s.exp().sum(dim=1)[:, None] - u.exp().sum(dim=1)
    found_VT = split(slice(0, 40), slice(0, 80))
    torch.testing.assert_close(found_VT.double(), expected_VT, atol=1e-5, rtol=0)
    pair = split.of_images(slice(0, 1), slice(0, 1))
    assert pair.item() == pytest.approx(-2 * float(s[0].exp().sum()), abs=1e-5)
    assert split.item_bytes() == 2 * 16 * 4


def test_query_results_include_uncertainty(model, split):
    found = model.evaluate().per_query
    for name, side in (("image_uncertainty", split.visual), ("caption_uncertainty", split.text)):
        np.testing.assert_allclose(found[name], side[:, 1].double().exp().sum(dim=1), rtol=1e-5)
    means = {"visual": split.visual[:, 0], "text": split.text[:, 0]}
    plain = SplitEmbeddings(**means, similarity=torch.nn.CosineSimilarity())
    plain.similarity.of_distributions = False
    assert plain.uncertainty() is None


def test_reloaded_model_keeps_scores_and_analyses_means(run, home):
    run_id = track_untrained(run)
    torch.manual_seed(run.seed)
    adapter = TASKS.build(run.task, run)
    expected = adapter.scorer(adapter.model(), "test")
    again = load(run_id)
    found = again.adapter.scorer(again.model, "test")
    for part in ("visual", "text"):
        torch.testing.assert_close(getattr(found, part), getattr(expected, part), check_device=False)
    texts = again.adapter.data("test").texts[:7]
    torch.testing.assert_close(again.encode_text(texts), found.text[:7], atol=1e-5, rtol=1e-5)
    numbers, owner_T = analyse(again, split="test").geometry, again.pairs("test", "be tried").owner_T
    means = found.visual[:, 0], found.text[:, 0]
    assert numbers["alignment/joint"] == pytest.approx(alignment(*means, owner_T))
    assert numbers["uniformity/joint"] == pytest.approx(uniformity(*means)["joint"])
    for side, embedding in (("visual", found.visual), ("text", found.text)):
        sum_B = embedding[:, 1].double().exp().sum(dim=1)
        assert numbers[f"uncertainty/{side}"] == pytest.approx(float(sum_B.mean()), rel=1e-5)
        deviation = float(sum_B.std(correction=0))
        assert numbers[f"uncertainty_deviation/{side}"] == pytest.approx(deviation, rel=1e-4)
    assert not [name for name in numbers if name.startswith(("variance", "log_variance"))]
    assert not [*ablated(found)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distributions_and_loss_are_float32_under_autocast(model, dtype):
    model, data = model.model.train(), model.adapter.data("train")
    batch = data.batch(np.arange(8), seed=0, epoch=0)
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        visual, text = model.encode_visual(batch), model.encode_text(batch)
        sim_VT = model.score(visual, text)
        loss = model(batch, epoch=0.0)["loss"]
    loss.backward()
    assert {x.dtype for x in (visual.vectors, text.vectors, sim_VT, loss)} == {torch.float32}
    torch.testing.assert_close(visual.vectors[:, 0].norm(dim=-1), torch.ones(8))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.zero_grad()
