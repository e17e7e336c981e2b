"""`evaluate --embeddings` on tracked runs of a tiny corpus."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import make_corpus
from untrained_runs import track_untrained
from verbs import called

from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.trained import load
from polypool.tasks.models.dual_encoder import SplitEmbeddings


@pytest.fixture(scope="module")
def run(home):
    return make_corpus(home)


@pytest.fixture(scope="module")
def of_vectors(run) -> str:
    return track_untrained(run)


@pytest.fixture(scope="module")
def of_sets(run) -> str:
    sets = {"aggregator": "pie(k=3)", "text_aggregator": "pie(k=2)", "similarity": "overlap:Overlap"}
    return track_untrained(replace(run, **sets))


def analysed(*words: str) -> str:
    code, shown, error = called("evaluate", "--embeddings", *words)
    assert code == 0, error
    return shown


def metrics(run_id: str, home) -> dict[str, float]:
    found = Tracker.attach(tracking_uri(home), run_id, running=False).metrics()
    return {name: value for name, value in found.items() if name.startswith("analysis/")}


def test_single_vectors_get_only_alignment_and_uniformity(of_vectors, home):
    shown = analysed(of_vectors)
    assert "single vectors: variance and elements are for models of sets" in shown
    trained = load(of_vectors)
    embeddings = trained.adapter.scorer(trained.model, "test")
    owner_T = np.repeat(np.arange(20), 2)
    apart_G = (embeddings.visual[owner_T] - embeddings.text).square().sum(-1)
    together = torch.cat([embeddings.visual, embeddings.text])
    logged = metrics(of_vectors, home)
    sides = {f"analysis/uniformity/{side}" for side in ("visual", "text", "joint")}
    assert set(logged) == {"analysis/alignment/joint", *sides}
    assert logged["analysis/alignment/joint"] == pytest.approx(float(apart_G.mean()), abs=1e-5)
    expected = torch.pdist(together.double()).pow(2).mul(-2).exp().mean().log()
    assert logged["analysis/uniformity/joint"] == pytest.approx(float(expected), abs=1e-5)
    assert f"{logged['analysis/alignment/joint']:.4f}" in shown


def test_sets_get_variance_and_per_element_scores(of_sets, home):
    shown = analysed(of_sets)
    logged = metrics(of_sets, home)
    trained = load(of_sets)
    embeddings = trained.adapter.scorer(trained.model, "test")
    assert (embeddings.visual.shape[1], embeddings.text.shape[1]) == (3, 2)
    variance = float((1 - embeddings.text.mean(1).norm(dim=-1)).mean())
    assert logged["analysis/variance/text"] == pytest.approx(variance, abs=1e-6)
    assert logged["analysis/log_variance/text"] == pytest.approx(np.log(variance), abs=1e-4)

    def rsum(visual, text) -> float:
        some = SplitEmbeddings(visual=visual, text=text, similarity=embeddings.similarity)
        return trained.adapter.evaluate_scores(some, "test", "whole").metrics["rsum"]

    expected = {
        "all/visual": rsum(embeddings.visual, embeddings.text),
        "all/text": rsum(embeddings.visual, embeddings.text),
        "only_3/visual": rsum(embeddings.visual[:, 2:], embeddings.text),
        "without_2/visual": rsum(embeddings.visual[:, [0, 2]], embeddings.text),
        "only_1/text": rsum(embeddings.visual, embeddings.text[:, :1]),
    }
    for name, value in expected.items():
        assert logged[f"analysis/whole/{name}"] == pytest.approx(value)
    assert len([name for name in logged if name.startswith("analysis/whole/")]) == 2 + 6 + 2
    (line,) = (line for line in shown.splitlines() if line.startswith("without 2"))
    assert line.split()[2:] == [f"{logged['analysis/whole/without_2/visual']:.1f}", "\u2013"]


def test_val_metrics_are_prefixed_and_elements_optional(of_sets, home):
    assert "with elements of" not in analysed(of_sets, "--split", "val", "--no-elements")
    logged = metrics(of_sets, home)
    assert {"analysis/val/alignment/joint", "analysis/val/variance/visual"} <= set(logged)
    assert not [name for name in logged if name.startswith("analysis/val/whole")]
