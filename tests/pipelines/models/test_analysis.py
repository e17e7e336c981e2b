"""The verb `evaluate` on tracked runs of a tiny corpus: the analysis of embeddings, and reranking."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import hgr, make_corpus
from kept import keep_run
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load, load_run
from polypool.pipelines.training.prepare import prepare
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.models.pair_encoder import PairScores
from polypool.tasks.scoring.ranking import reranking


@pytest.fixture(scope="module")
def run(home):
    return make_corpus(home)


@pytest.fixture(scope="module")
def of_vectors(run) -> str:
    return keep_run(run)


@pytest.fixture(scope="module")
def of_sets(run) -> str:
    sets = {"aggregator": "pie(k=3)", "text_aggregator": "pie(k=2)", "similarity": "overlap:Overlap"}
    return keep_run(replace(run, **sets))


def analysed(*words: str) -> str:
    code, shown, error = called("evaluate", "--embeddings", *words)
    assert code == 0, error
    return shown


def metrics(run_id: str, home) -> dict[str, float]:
    found = Tracker.attach(tracking_uri(home), run_id, running=False).metrics()
    return {name: value for name, value in found.items() if name.startswith("analysis/")}


def test_single_vectors_get_alignment_and_uniformity_alone(of_vectors, home):
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


def test_sets_get_variance_and_scores_of_their_elements(of_sets, home):
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


def test_aligned_sets_are_scored_with_the_same_element_left_out_of_both(run, home):
    run_id = keep_run(replace(run, aggregator="pie(k=3)", similarity="aligned_mean"))
    assert "without 2" in analysed(run_id)
    logged = metrics(run_id, home)
    assert len([name for name in logged if name.startswith("analysis/whole/")]) == 1 + 6
    assert {"analysis/whole/all/joint", "analysis/whole/without_2/joint"} <= set(logged)


def test_another_split_has_names_of_its_own_and_elements_can_be_left_out(of_sets, home):
    assert "with elements of" not in analysed(of_sets, "--split", "val", "--no-elements")
    logged = metrics(of_sets, home)
    assert {"analysis/val/alignment/joint", "analysis/val/variance/visual"} <= set(logged)
    assert not [name for name in logged if name.startswith("analysis/val/whole")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "dev"], "no items in the split 'dev'"),
        (["--protocol", "coco-5k"], "'coco-5k' is defined on 5,000 items"),
        (["--protocol", "coco-9k"], "Did you mean 'coco-5k'"),
    ],
)
def test_bad_input_is_one_message_and_code_2(words, message, of_sets):
    code, _, error = called("evaluate", "--embeddings", of_sets, *words)
    assert (code, message in error) == (2, True), error


def test_a_model_that_scores_pairs_has_no_codes(of_vectors, monkeypatch):
    trained = load(of_vectors)
    monkeypatch.setattr(type(trained.adapter), "scorer", lambda *_: lambda images, captions: torch.zeros(1))
    code, _, error = called("evaluate", "--embeddings", of_vectors)
    assert (code, "has no embeddings of images and of texts apart" in error) == (2, True), error


CROSS = {"cross": "cross_modal(heads=2)", "aggregator": "mean"}
KINDS = {
    "vectors": {},
    "sets": {"aggregator": "slots(k=2, heads=2, head_width=8)"},
    "hgr": {"model": hgr(), "text": "bigru(width=16, embedding=8, min_count=1, ends=False)"},
}


def said(*words: str) -> tuple[int, str]:
    code, out, err = called("evaluate", *words)
    return code, out + err


def test_numbers_of_reranking_have_a_name_and_a_table_of_their_own(home, run):
    run_id = keep_run(replace(run, **CROSS, experiment="apart"))
    assert said(run_id)[0] == 0
    code, shown = said(run_id, "--rerank", "5")
    assert code == 0
    assert "test under whole-rerank5" in shown
    assert "i2t/R5" in shown
    for k in ("7", "20"):
        assert said(run_id, "--rerank", k)[0] == 0
    record = load_run(run_id).tracker
    logged = record.metrics()
    exact = {name: value for name, value in logged.items() if name.startswith("whole/")}
    as_reranked = {name.replace("whole/", "whole-rerank20/"): value for name, value in exact.items()}
    assert as_reranked.items() <= logged.items()
    assert logged["whole-rerank7/i2t/R5"] <= logged["whole-rerank7/i2t/R7"] < 100
    with np.load(record.download("per_query") / "whole-rerank7.npz", allow_pickle=False) as kept:
        assert 100 * np.mean(kept["t2i_rank"] < 7) == pytest.approx(logged["whole-rerank7/t2i/R7"])

    compared = compare(tracking_uri(home), "apart")
    assert {group.protocol for group in compared.groups} == {
        "whole",
        *(f"whole-rerank{k}" for k in (5, 7, 20)),
    }
    tables = "a table each for the protocols whole, whole-rerank20, whole-rerank5"
    assert any(tables in note for note in compared.notes)
    (group,) = compare(tracking_uri(home), "apart", protocol="whole-rerank7").groups
    assert group.rows[0].values["rsum"] == (logged["whole-rerank7/rsum"],)


def test_the_mean_of_several_models_is_reranked_by_that_mean(run):
    models = [load_run(keep_run(replace(run, **CROSS, seed=seed))) for seed in (0, 1)]
    exact, found = (
        run_evaluation.evaluate(models, protocols=[name], split="test")[0]
        for name in ("whole", "whole-rerank20")
    )
    assert (found.protocol, found.metrics | exact.metrics) == ("whole-rerank20", found.metrics)
    alone = run_evaluation.evaluate(models[:1], protocols=["whole"], split="test")[0]
    assert exact.metrics["rsum"] != alone.metrics["rsum"]
    models[1] = load_run(keep_run(run))
    with pytest.raises(InputError, match="is for models that look at every pair"):
        run_evaluation.evaluate(models, protocols=["whole-rerank5"], split="test")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_encodes_apart_is_refused_before_it_encodes(run, kind, monkeypatch):
    run_id = keep_run(replace(run, **KINDS[kind]))
    kind = type(load_run(run_id).adapter)
    monkeypatch.setattr(kind, "scorer", lambda *_: pytest.fail("it encodes the split"))
    code, shown = said(run_id, "--rerank", "5")
    assert code == 2
    assert "'whole-rerank5' is for models that look at every pair" in shown
    assert "evaluate it under 'whole'" in shown


def test_a_run_whose_protocols_do_not_fit_its_model_is_refused_before_training(run):
    for change in ({"protocol": "whole-rerank5"}, {"task": "image_text(dev_protocol='val-1k-rerank5')"}):
        prepare(replace(run, **CROSS, **change))
        with pytest.raises(InputError, match="for models that look at every pair"):
            prepare(replace(run, **change))
    with pytest.raises(InputError, match="rerank=0: at least 1"):
        prepare(replace(run, **CROSS, protocol="whole-rerank0"))


def test_few_pairs_are_looked_at(run, monkeypatch):
    known = []
    monkeypatch.setattr(reranking, "PROBES", 3)
    of_pairs = PairScores.of_pairs
    monkeypatch.setattr(
        PairScores, "of_pairs", lambda self, *places: known.append(self.known_VT) or of_pairs(self, *places)
    )
    trained = load_run(keep_run(replace(run, **CROSS)))
    found = trained.adapter.evaluate(trained.model, "test", "whole-rerank3")
    assert known
    assert int(known[-1].sum()) <= 2 * 3 * (20 + 40) < 20 * 40
    assert len(found.pictures) == 2
