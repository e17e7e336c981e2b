"""Runs of an experiment, as they are found."""

import math
from pathlib import Path

import pytest
from mlflow import MlflowClient

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.tracking import Tracker, find_runs


def begin(uri: str, home: Path, name: str, *, experiment: str = "many", **params: object) -> Tracker:
    return Tracker.start(experiment, uri=uri, home=home, name=name, tags={"kind": "train"}, params=params)


def test_runs_of_every_kind_are_found_as_they_were_logged(tmp_path):
    home = tmp_path / "100% of #runs"
    uri = f"sqlite:///{home / 'mlflow.db'}"
    done = begin(uri, home, "done", lr=1e-3, words="x" * 300, text="", none=None)
    done.log({"loss": 2.0, "whole/i2t/R1": 10.0}, step=1)
    done.log({"loss": math.nan, "high": 1e300}, step=2)
    done.tags({"é": "ü\n'\"", "seed": "0"})
    done.finish()
    begin(uri, home, "failed").finish("FAILED")
    begin(uri, home, "at work").log({"loss": 1.0}, step=0)
    again = begin(uri, home, "taken up again")
    again.finish("FAILED")
    Tracker.attach(uri, again.run_id)
    begin(uri, home, "elsewhere", experiment="other").finish()
    client = MlflowClient(uri)
    client.delete_run(begin(uri, home, "deleted").run_id)
    back = begin(uri, home, "deleted and brought back").run_id
    client.delete_run(back)
    client.restore_run(back)
    found = {run.name: run for run in find_runs(uri, "many", finished=False)}
    assert {*found} == {"done", "failed", "at work", "taken up again", "deleted and brought back"}
    assert all((run.ended is None) == (run.status == "RUNNING") for run in found.values()), (
        "also of a resumed run"
    )
    (finished,) = find_runs(uri, "many")
    assert finished == found["done"] or math.isnan(finished.metrics["loss"])
    assert (finished.metrics["high"], finished.metrics["whole/i2t/R1"]) == (1e300, 10.0)
    assert (finished.params["lr"], finished.params["words"], finished.params["text"]) == (
        "0.001",
        "x" * 300,
        "",
    )
    assert (finished.tags["é"], finished.tags["seed"]) == ("ü\n'\"", "0")
    with pytest.raises(AbsentError, match=r"unknown experiment 'mny'. Did you mean 'many'\?"):
        find_runs(uri, "mny")
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(InputError, match=r"experiment 'gone' of .* was deleted"):
        find_runs(uri, "gone")
