"""Trained models as `load` finds them: of runs and folders, whole, damaged or not there."""

from __future__ import annotations

import shutil

import pytest
from corpora import make_corpus
from kept import keep_run

from infra.errors import InputError
from infra.tracking import Tracker, tracking_uri
from pipelines.models import load_run
from pipelines.training import runs as start
from tasks.run import to_json


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def begin(home, run, **tags) -> Tracker:
    """Record a run without artifacts."""
    given = {"uri": tracking_uri(home), "home": home, "name": "made", "params": to_json(run)}
    return Tracker.start("polypool", tags=start.tags(run) | tags, **given)


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
    with pytest.raises(
        InputError, match=f"kept no model: .* `python -m pipelines.train resume {made.run_id}`"
    ):
        load_run(made.run_id)
    made.log({"dev/rsum": 50.0}, step=1)
    with pytest.raises(InputError, match=f"artifact was deleted; `python -m pipelines.rerun {made.run_id}`"):
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
