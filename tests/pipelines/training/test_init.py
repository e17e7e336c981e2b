"""A run that begins with the weights of another: what has the same name and shape, and the rest named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus, make_questions
from safetensors.torch import load_file

from polypool.infra.errors import InputError
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.training import launch
from polypool.pipelines.training.checkpoints.best import weights_of
from polypool.tasks.run import Run

TEXT = "bigru(width=16, embedding=8, min_count=1, ends=False)"


@pytest.fixture
def pairs(tmp_path: Path) -> Run:
    run = make_corpus(tmp_path / "pairs")
    return replace(run, text=TEXT, aggregator="lip", optim=replace(run.optim, epochs=1), figures=False)


def test_a_run_begins_where_another_ended(pairs, home, capsys):
    first = launch.start(pairs)
    again = launch.start(replace(pairs, init=first, optim=replace(pairs.optim, epochs=0)))
    assert "weights are those of run " + first in capsys.readouterr().out
    uri = tracking_uri(home)
    ours, theirs = (load_file(weights_of(run, uri)) for run in (again, first))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_one_tasks_aggregator_starts_anothers(pairs, tmp_path, home, capsys):
    asked = make_questions(tmp_path / "asked")
    asked = replace(asked, text=TEXT, aggregator="lip", optim=replace(asked.optim, epochs=0), figures=False)
    first = launch.start(pairs)
    capsys.readouterr()
    second = launch.start(replace(asked, init=first))
    said = capsys.readouterr().out
    assert "anew begin " in said
    assert "classifier.weight" in said
    assert (
        "note: that run was made from other data, words or features (visual, feature source, text), so"
        in said
    )
    ours, theirs = (load_file(weights_of(run, tracking_uri(home))) for run in (second, first))
    names = [name for name in theirs if ".aggregator." in name]
    assert len(names) > 4
    assert all(torch.equal(ours[name], theirs[name]) for name in names)
    other = {name for name in ours if name in theirs and ours[name].shape != theirs[name].shape}
    assert other <= {name for name in ours if name in said}


def test_a_run_that_is_not_there_or_has_nothing_alike_is_refused(pairs, home):
    with pytest.raises(InputError, match="no run 'nobody'"):
        launch.start(replace(pairs, init="nobody"))
    first = launch.start(replace(pairs, optim=replace(pairs.optim, epochs=0)))
    wide = replace(pairs, init=first, visual="regions(width=24)", text="bigru(width=24, embedding=12)")
    with pytest.raises(InputError, match="no name and shape in common"):
        launch.start(replace(wide, aggregator="mean"))
