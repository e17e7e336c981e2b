"""Runs that are evaluated by reranking: what is refused, what is recorded, and with what it is compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from corpora import make_corpus
from kept import keep_run
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load_run
from polypool.pipelines.training.prepare import prepare
from polypool.tasks.models.pair_encoder import PairScores
from polypool.tasks.scoring.ranking import reranking

CROSS = {"cross": "cross_modal(heads=2)", "aggregator": "mean"}
KINDS = {
    "vectors": {},
    "sets": {"aggregator": "slots(k=2, heads=2, head_width=8)"},
    "hgr": {"model": "hgr", "text": "bigru(width=16, embedding=8, min_count=1, ends=False)"},
}


@pytest.fixture(scope="module")
def run(home):
    """20 test images with 40 captions."""
    return make_corpus(home)


def said(*words: str) -> tuple[int, str]:
    """Return the exit code of the verb, and all that it says."""
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
