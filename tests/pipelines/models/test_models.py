"""Trained models as `load` finds them: of runs and folders, whole, damaged or not there."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
import torch
from corpora import make_corpus, make_questions
from kept import keep_run

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.models.exporting import export
from polypool.pipelines.models.trained import load, load_run
from polypool.pipelines.training import launch as start
from polypool.pipelines.training import recording
from polypool.tasks.datasets.corpus import write_corpus
from polypool.tasks.run import Run, to_json


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def begin(home, run, **tags) -> Tracker:
    """Record a run without artifacts."""
    given = {"uri": tracking_uri(home), "home": home, "name": "made", "params": to_json(run)}
    return Tracker.start("polypool", tags=recording.tags(run) | tags, **given)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("comparison", "it is the summary of a comparison or a sweep; give one of the runs that it compares"),
        ("ensemble", "it is an ensemble; give one of its members, which its parameter `members` names"),
        ("synthetic", "it is that of a synthetic experiment; give a run that was trained on a corpus"),
        ("", "it was not made by polypool, as it has no tag `kind`; give a run that was trained"),
        ("other", "it is of kind 'other' and was not trained here; give a run that was"),
    ],
)
def test_a_run_that_no_training_made_is_named_with_what_to_give(run, home, kind, message):
    made = begin(home, run, kind=kind)
    made.text("compare.md", "a table")
    with pytest.raises(InputError) as error:
        load_run(made.run_id)
    assert str(error.value) == f"run {made.run_id} has no model: {message}"


def test_a_run_that_ended_early_goes_on_and_one_whose_model_was_deleted_is_repeated(run, home):
    made = begin(home, run)
    with pytest.raises(InputError, match=f"has no model: .* `polypool train resume {made.run_id}`"):
        load_run(made.run_id)
    made.log({"dev/rsum": 50.0}, step=1)
    with pytest.raises(InputError, match=f"artifact was deleted; `polypool train rerun {made.run_id}`"):
        load_run(made.run_id)


def test_a_model_that_is_not_whole_is_said(run, home):
    run_id = keep_run(run)
    folder = home / "mlartifacts" / run_id / "artifacts" / "model"
    whole = home / "whole"
    shutil.copytree(folder, whole)
    for name, text, message in (
        ("assets.json", None, rf"model: assets\.json of the model of run {run_id} is missing"),
        ("run.json", "{", r"run\.json: not valid JSON"),
        ("model.safetensors", "x", r"cannot read the weights .*model\.safetensors"),
    ):
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)
        with pytest.raises(InputError, match=message):
            load_run(run_id)
        shutil.copy(whole / name, folder / name)
    assert load_run(run_id).run.aggregator == "mean"


def test_a_run_and_its_exported_folder_are_one_model(run, home, monkeypatch):
    run_id = keep_run(replace(run, data=replace(run.data, text_augment="")))
    export(run_id, home / "out")
    monkeypatch.chdir(home)
    trained, folder, path = load(run_id), load("out"), load(home / "out")
    assert trained.tracker.run_id == run_id
    assert folder.tracker is None
    adapter = trained.adapter
    pairs, ids = adapter.data("test"), [item.id for item in adapter.corpus.items("test")]
    sets = [np.array(adapter.store[int(row)]) for row in adapter.store.rows(ids)]
    sim_VT = adapter.scorer(trained.model, "test")(slice(None), slice(None))
    for model in (trained, folder, path):
        torch.testing.assert_close(model.scores(sets, pairs.texts), sim_VT)
        hits = model.search(pairs.texts[5], k=3)
        assert [hit.id for hit in hits] == [ids[n] for n in sim_VT[:, 5].argsort(descending=True)[:3]]
    assert trained.open_search() is trained.open_search()
    assert trained.open_search("val") is not trained.open_search()
    assert len(trained.search(pairs.texts[5], split="val")) == 10
    expected = adapter.evaluate(trained.model, "val", "whole").metrics
    assert folder.evaluate(split="val").metrics == expected
    assert folder.evaluate().metrics != expected
    with pytest.raises(InputError, match="k must be at least 1"):
        trained.search("a dog", k=0)
    with pytest.raises(InputError, match=r"no such folder"):
        load(home / "gone")
    with pytest.raises(InputError, match=r"no run 'gone'"):
        load("gone")


def test_what_a_model_cannot_do_is_said_in_a_line(run, home, tmp_path):
    pairs = load(keep_run(replace(run, aggregator="score_attention(heads=2)")))
    with pytest.raises(InputError, match=r"a PairEncoder .* looks at every pair; `scores` compares them"):
        pairs.encode_text(["a dog"])
    answering = load(keep_run(make_questions(tmp_path)))
    with pytest.raises(InputError, match="answers questions; ask one with `answers`"):
        answering.search("a dog")
    with pytest.raises(
        InputError, match=r"cannot answer questions: its adapter has no choices, probabilities"
    ):
        pairs.answers([np.ones((2, 10))], ["what is it?"])


def test_a_corpus_and_a_run_from_nothing_are_trained_as_their_documentation_shows(home, monkeypatch):
    names: dict[str, object] = {}
    monkeypatch.chdir(home)
    for documented in (write_corpus, Run):
        lines = inspect.getdoc(documented).partition("::\n")[2].splitlines()
        code = takewhile(lambda line: not line or line.startswith("    "), lines)
        exec(textwrap.dedent("\n".join(code)), names)
    assert load(start.start(names["run"])).search("picture 3", k=2)
