"""Metadata of a run in MLflow: data sets, name, source and description."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpora import make_corpus

from polypool.infra.registry import RECIPES
from polypool.infra.tracking import Source, Tracker, source_tags, tracking_uri
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.recipes.load import Ensemble, derive
from polypool.pipelines.training import train as training
from polypool.pipelines.training.record import Described
from polypool.tasks.run import Run, to_json


@pytest.fixture(scope="module")
def run(home) -> Run:
    made = make_corpus(home, train=16, val=8, test=8)
    return replace(made, optim=replace(made.optim, epochs=1), figures=False, text_aggregator="max")


@pytest.fixture(scope="module")
def trained(run) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["polypool train", "tiny", "--data.corpus", "a/b"])
        return training.start(run)


def shown(home: Path, run_id: str) -> Any:
    return Tracker.attach(tracking_uri(home), run_id, running=False)._call("get_run")


def inputs(home: Path, run_id: str) -> dict[str, SimpleNamespace]:
    found = {}
    for each in shown(home, run_id).inputs.dataset_inputs:
        of, tags = each.dataset, {tag.key: tag.value for tag in each.tags}
        found[of.name] = SimpleNamespace(
            digest=of.digest,
            at=(of.source_type, json.loads(of.source)),
            profile=json.loads(of.profile) if of.profile else {},
            context=tags["mlflow.data.context"],
        )
    return found


def test_mlflow_inputs_list_splits_and_feature_store(home, run, trained):
    found, tags = inputs(home, trained), shown(home, trained).data.tags
    splits = {name: found.get(f"tiny/{name}") for name in ("train", "val", "test", "features")}
    assert {f"tiny/{name}" for name in splits} == found.keys()
    for name, of in splits.items():
        corpus = name != "features"
        assert of.context == name
        assert of.digest == tags["data.corpus" if corpus else "data.features"][:36]
        assert of.at == ("local", {"uri": run.data.corpus if corpus else run.data.features})
        assert of.profile == ({"images": int(tags[f"data.images_{name}"])} if corpus else {"sets": 32})
    again = Source(name="tiny/test", digest=tags["data.corpus"], location="elsewhere", context="x")
    Tracker.attach(tracking_uri(home), trained, running=False).inputs([again])
    assert inputs(home, trained)["tiny/test"].context == "test"


def test_run_tags_contain_description_and_source(home, run, trained):
    tags = shown(home, trained).data.tags
    assert tags["mlflow.runName"] == f"mean, text max · image_text · {run.recipe} · features · seed 0"
    assert (tags["task"], tags["dataset"], tags["features"]) == ("image_text", "tiny", "features")
    assert tags["mlflow.source.name"] == "train tiny --data.corpus ..."
    words = tags["mlflow.note.content"]
    for part in (
        f"image_text on tiny: visual {run.visual} ({run.data.features}), mean; text {run.text}, max. Corpus: ",
        f"Minimises {run.objective} by adamw in 1 epochs of batches of {run.optim.batch}, seed 0",
        "scored by whole",
        "\n\n    polypool train tiny --data.corpus a/b",
    ):
        assert part in words
    untrained = Described.of(replace(run, optim=replace(run.optim, epochs=0))).words
    assert "Not trained; test split scored by whole" in untrained


OWN = {"recipe": "image_text", "data": {"dataset": "mine"}}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (OWN, "mean, text max · image_text · mine · features · seed 0"),
        (
            OWN | {"task": "my.task:Word(place=1)"},
            "mean, text max · my.task:Word · image_text · mine · features · seed 0",
        ),
        (OWN | {"name": "first try", "seed": 3}, "first try"),
        (OWN | {"name": "both", "jointly": "joint(a=1)", "task": "vqa"}, "both · vqa"),
        (
            {"text_aggregator": "mean", "visual": "cnn(width=8)", "data": {"features": ""}},
            "mean · image_text · tiny · cnn · seed 0",
        ),
    ],
)
def test_run_name_is_given_or_derived_from_settings(run, changes, name):
    assert Described.of(derive(run, **changes)).name == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("polypool train coco 'kmax(k=5)'", "train coco 'kmax(k=5)'"),
        ("polypool train coco --data.corpus data/coco --seed 1", "train coco --data.corpus ..."),
        ("", "notebook.py"),
    ],
)
def test_source_tag_contains_no_slash(command, name, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/home/me/notebook.py", "x"])
    assert source_tags(command)["mlflow.source.name"] == name


def test_ensemble_logs_scored_split_and_members(home, run, monkeypatch):
    RECIPES.names()
    monkeypatch.setitem(RECIPES._parts, "one", lambda: replace(run, recipe="one"))
    together = run_evaluation.start_ensemble(Ensemble(members=("one", "one"), protocol="whole"))
    assert {*inputs(home, together)} == {"tiny/test", "tiny/features"}
    whole = shown(home, together)
    members = whole.data.params["members"].split(",")
    assert (whole.info.status, len(members)) == ("FINISHED", 2)
    assert {shown(home, each).data.tags["mlflow.parentRunId"] for each in members} == {together}


def test_object_storage_input_has_source_type_s3(home, run):
    uri = tracking_uri(home)
    made = Tracker.start("places", uri=uri, home=home, name="n", tags={}, params=to_json(run))
    made.inputs([Source(name="far", digest="0" * 64, location="s3://bucket/coco", context="train")])
    assert inputs(home, made.run_id)["far"].at == ("s3", {"uri": "s3://bucket/coco"})


def test_system_metrics_are_logged_only_when_enabled(home, run, trained, monkeypatch):
    name = "system/cpu_utilization_percentage"
    assert not [metric for metric in shown(home, trained).data.metrics if metric.startswith("system/")]
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    run_id = training.start(replace(run, seed=7))
    tracker = Tracker.attach(tracking_uri(home), run_id, running=False)
    assert {name, "system/system_memory_usage_percentage", "system/network_receive_megabytes"} <= {
        *tracker.metrics()
    }
