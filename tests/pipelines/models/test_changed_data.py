"""Runs whose captions or features changed after training: refused, or on demand scored as other data."""

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from verbs import called

import polypool as pp
from polypool.infra.errors import InputError
from polypool.infra.process.stopping import Stopped
from polypool.infra.store import StoreWriter
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.models.run_evaluation import analyse
from polypool.pipelines.serving.schema import Settings
from polypool.pipelines.serving.service import Service
from polypool.pipelines.training import train as training
from polypool.tasks.inputs.other_data import changed_data

SPLITS = ("train",) * 8 + ("val",) * 4 + ("test",) * 4
COLOURS = ("red", "green", "blue", "grey")


def write_table(file: Path, *, turned: int = 0) -> None:
    """Write a table with two captions per picture, taken from the item `turned` places further."""
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["image", "caption", "split"])
        for item, split in enumerate(SPLITS):
            shown = (item + turned) % len(SPLITS)
            for text in (f"a {COLOURS[shown % 4]} dog {shown}", f"number {shown} in {COLOURS[shown // 4]}"):
                table.writerow([f"{item}.png", text, split])


def write_features(folder: Path, *, seed: int = 0) -> None:
    """Write a store of two random vectors per picture."""
    rng = np.random.default_rng(seed)
    with StoreWriter(folder, dim=6, dtype="float32", source={"made": "by a test"}) as writer:
        for item in range(len(SPLITS)):
            writer.add(f"{item}.png", rng.normal(size=(2, 6)).astype(np.float32))
        writer.close()


def said(verb: str, *words: object, code: int = 0) -> str:
    found, out, err = called(verb, *words)
    assert found == code, err
    return out if code == 0 else err


@pytest.fixture(scope="module")
def ingest(home, tmp_path_factory) -> Callable[..., None]:
    """Return a function that rebuilds the corpus from its table, with `turned` captions if given."""
    folder = tmp_path_factory.mktemp("pictures")
    for item in range(len(SPLITS)):
        (folder / f"{item}.png").write_bytes(b"never opened")

    def give(**changes: int) -> None:
        write_table(folder / "captions.csv", **changes)
        said("ingest", "table", "--file", folder / "captions.csv", "--out", home / "mine")

    give()
    write_features(home / "cells")
    return give


@pytest.fixture(scope="module")
def words(home, ingest) -> list[object]:
    small = ("--optim.epochs", 1, "--optim.batch", 8, "--no-figures", "--visual", "regions(width=8)")
    text = ("--text", "bigru(width=8, embedding=4, min_count=1)")
    return ["image_text", "--corpus", home / "mine", "--features", home / "cells", *small, *text]


@pytest.fixture(scope="module")
def run_id(words) -> str:
    return re.search(r"^run (\w+) finished", said("train", *words, "--name", "first"), re.MULTILINE)[1]


def recorded(home: Path) -> dict[str, RunRecord]:
    return {run.run_id: run for run in find_runs(tracking_uri(home), "polypool", finished=False)}


def test_changed_captions_require_other_data_flag(home, ingest, run_id):
    assert "rsum" in said("evaluate", "first")
    assert re.search("^rank", said("search", run_id[:12], "a red dog 1"), re.MULTILINE)
    exported = home / "exported"
    said("export", "latest", "--out", exported)
    before = recorded(home)[run_id]
    queries = Tracker.attach(tracking_uri(home), run_id, running=False).download("per_query/whole.npz")
    results = queries.read_bytes()
    ingest(turned=1)
    now, was = (
        rf"corpus is (?!{then})\w{{12}}, was {then}" for then in [before.tags["data.corpus"][:12]] * 2
    )
    for verb, *more in (("evaluate", "latest"), ("search", exported, "a red dog 1")):
        refused = said(verb, *more, code=2)
        assert refused.startswith("error: image_text mine gpo seed 0 was trained on other data than ")
        assert re.search(was, refused)
        assert "--other-data" in refused
    for use in (
        lambda: pp.load("first").pairs("val", "x"),
        lambda: analyse(pp.load("first"), split="test"),
        lambda: Service.load(Settings(source=run_id)),
    ):
        with pytest.raises(InputError, match=now):
            use()
    assert recorded(home).keys() == {run_id}
    assert recorded(home)[run_id].metrics == before.metrics
    assert queries.read_bytes() == results

    moved = said("evaluate", run_id, "--other-data")
    assert re.search(r"^image_text gpo seed 0 of mine: mine@\w{8}, test under whole", moved, re.MULTILINE)
    (found,) = (run for run in recorded(home).values() if run.run_id != run_id)
    name = re.search(r"mine@\w+", moved)[0]
    assert (found.tags["kind"], found.tags["trained_on"], found.tags["dataset"]) == ("transfer", "mine", name)
    assert found.tags["mlflow.parentRunId"] == run_id
    assert found.tags["data.corpus"] != before.tags["data.corpus"]
    assert found.metrics["whole/rsum"] == pp.load(run_id, other_data=True).evaluate().metrics["rsum"]
    assert recorded(home)[run_id].metrics == before.metrics
    assert queries.read_bytes() == results
    compared = said("compare", "--details")
    assert f"image_text · trained on mine, evaluated on {name} · whole" in compared
    assert "evaluated on" not in said("compare", "--details", "--data", "mine")
    assert Service.load(Settings(source=run_id, other_data=True)).search is not None
    assert "takes one run" in said("evaluate", run_id, "--other-data", "--embeddings", code=2)

    ingest()
    assert "mine@" not in said("evaluate", run_id, "--other-data"), (
        "restored data must count as the training data"
    )
    assert len(recorded(home)) == 2
    scores = {name for name in before.metrics if not name.startswith("cost/")}  # costs are measured again
    metrics = recorded(home)[run_id].metrics
    assert {name: metrics[name] for name in scores} == {name: before.metrics[name] for name in scores}


def test_resume_refuses_changed_features(home, words, run_id, tmp_path, monkeypatch):
    file, store = tmp_path / "id", home / "cells"

    def stopped(*_: object, **__: object) -> None:
        raise Stopped

    command = [*words, "--seed", 1, "--run-id-file", file]
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", stopped)
        called("train", *command)
    interrupted = file.read_text().strip()
    tracker = Tracker.attach(tracking_uri(home), interrupted, running=False)
    assert tracker.status() == "KILLED"
    shutil.move(store, tmp_path / "before")
    write_features(store, seed=1)
    digest = tracker.tag("data.features")[:12]
    for again in (command, ["resume", "latest"]):
        refused = said("train", *again, code=2)
        assert re.search(rf"features is \w{{12}}, was {digest}", refused)
        assert f"`polypool train rerun {interrupted}`" in refused
        assert tracker.status() == "KILLED"
        assert "epoch" not in tracker.metrics()
    shutil.rmtree(store)
    shutil.move(tmp_path / "before", store)
    assert f"run {interrupted} finished" in said("train", "resume", "latest")
    assert f"run {interrupted} had finished before" in said("train", *command)


HERE, THERE = {"features_origin": "o"}, {"features_origin": "p"}


@pytest.mark.parametrize(
    ("then", "now", "changed"),
    [
        ({}, {"corpus": "a"}, []),
        ({"corpus": "a", "features": "b"}, {"corpus": "a"}, []),
        (
            {"corpus": "a" * 64, "images_test": "4"},
            {"corpus": "b" * 64, "images_test": "5"},
            ["corpus is bbbbbbbbbbbb, was aaaaaaaaaaaa", "images_test is 5, was 4"],
        ),
        ({"features": "a", **HERE}, {"features": "b", **HERE}, []),
        ({"features": "a", **HERE}, {"features": "b", **THERE}, ["features is b, was a"]),
        ({"features": "a", **HERE}, {"features": "b"}, ["features is b, was a"]),
        (
            {"x.features": "a", "y.corpus": "c"},
            {"x.features": "b", "y.corpus": "c"},
            ["x.features is b, was a"],
        ),
    ],
)
def test_changed_data_names_differences_except_rounding(then, now, changed):
    assert changed_data(then, now) == changed
