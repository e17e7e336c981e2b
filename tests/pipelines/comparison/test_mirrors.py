from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event
from toy import toy_run
from verbs import exit_code

from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.commands import runs as verb
from polypool.pipelines.comparison import mirrors
from polypool.pipelines.comparison.mirrors.tensorboard import TensorBoard
from polypool.pipelines.training.recording import tags
from polypool.tasks.run import to_params

LOSSES = [2.0, 1.5, float("nan"), 1.25]


@pytest.fixture
def made(home: Path, tmp_path: Path) -> Iterator[dict[str, Tracker]]:
    """An experiment with a run that ended, one that goes on, one that logged nothing, and the plan of a sweep."""
    made = {}
    for name in ("ended", "goes on", "nothing", "plan"):
        run = toy_run(aggregator="max", seed=3)
        kind = {"kind": "sweep"} if name == "plan" else {}
        described = {"name": f"{name}/a b", "tags": tags(run) | kind, "params": to_params(run)}
        made[name] = Tracker.start("mirrored", uri=tracking_uri(home), home=home, **described)
        for step, loss in enumerate(LOSSES if name != "nothing" else []):
            made[name].log({"train/loss": loss}, step=10 * step)
    made["ended"].log({"test/score": 80.5, "epoch": 2}, step=40)
    Image.new("RGB", (4, 3), "red").save(tmp_path / "pooling.png")
    made["ended"].artifact(tmp_path / "pooling.png", "figures")
    made["ended"].finish()
    yield made
    for tracker in made.values():
        tracker._call("delete_run")


def events(folder: Path) -> list[Event]:
    """Return what TensorBoard's files in a folder hold, in the order of writing."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[12 + length + 4 :]
    return found


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    values = [
        (event, value) for event in events(folder) for value in event.summary.value if value.tag == name
    ]
    return [(event.step, value.simple_value) for event, value in values]


def tensorboard(out: Path, *words: str) -> int:
    return exit_code(verb.main, "mirror", "tensorboard", "--out", out, "--experiment", "mirrored", *words)


def test_curves_figures_settings_and_results_are_in_a_folder_of_the_run(made, tmp_path, capsys):
    assert tensorboard(tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "2 runs have something new; 1 still running" in said
    assert f"tensorboard --logdir {tmp_path / 'out'}" in said
    ended = tmp_path / "out" / f"ended_a_b-{made['ended'].run_id[:8]}"
    goes_on = tmp_path / "out" / f"goes_on_a_b-{made['goes on'].run_id[:8]}"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {ended.name, goes_on.name}
    for folder in (ended, goes_on):
        points = scalars(folder, "train/loss")
        assert str(points) == str([(0, 2.0), (10, 1.5), (20, float("nan")), (30, 1.25)])
    logged = {point[3]: point[2] for point in made["ended"].points_of("train/loss")}
    times = {
        e.step: e.wall_time for e in events(ended) if any(v.tag == "train/loss" for v in e.summary.value)
    }
    assert {step: int(1000 * time + 0.5) for step, time in times.items()} == logged
    assert scalars(ended, "test/score") == [(40, 80.5)]
    values = [value for event in events(ended) for value in event.summary.value]
    (picture,) = [value.image for value in values if value.tag == "pooling"]
    assert (picture.height, picture.width) == (3, 4)
    (begin,) = [value.metadata for value in values if "session_start" in value.tag]
    assert b"aggregator" in begin.plugin_data.content
    assert b"checkpoint_every" not in begin.plugin_data.content


def test_again_it_adds_what_is_new_and_leaves_what_is_whole(made, tmp_path):
    assert tensorboard(tmp_path) == 0
    ended = tmp_path / f"ended_a_b-{made['ended'].run_id[:8]}"
    before = {path: path.stat().st_ino for path in ended.iterdir()}
    made["goes on"].log({"train/loss": 1.0}, step=40)
    assert tensorboard(tmp_path) == 0
    assert {path: path.stat().st_ino for path in ended.iterdir()} == before
    goes_on = tmp_path / f"goes_on_a_b-{made['goes on'].run_id[:8]}"
    assert [step for step, _ in scalars(goes_on, "train/loss")] == [0, 10, 20, 30, 40]
    again = Tracker.attach(made["ended"].uri, made["ended"].run_id)  # which is running, then
    again.log({"train/loss": 0.5}, step=50)
    again.finish()
    assert tensorboard(tmp_path) == 0
    assert [step for step, _ in scalars(ended, "train/loss")] == [0, 10, 20, 30, 50]


def test_a_run_is_followed_to_its_end(made, home, tmp_path, monkeypatch):
    looks = []

    def meanwhile(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            made["goes on"].log({"train/loss": 1.0}, step=40)
        elif len(looks) == 2:
            made["goes on"].finish("KILLED")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(mirrors.time, "sleep", meanwhile)
    with pytest.raises(KeyboardInterrupt):
        mirrors.mirror(TensorBoard(tmp_path), uri=tracking_uri(home), experiment="mirrored", every=2.5)
    assert looks == [2.5] * 3
    goes_on = tmp_path / f"goes_on_a_b-{made['goes on'].run_id[:8]}"
    assert [step for step, _ in scalars(goes_on, "train/loss")] == [0, 10, 20, 30, 40], "each once"
    assert (goes_on / "whole").exists()


class Client:
    """As much of W&B's client as is used, which notes what it is given."""

    Image = staticmethod(lambda path: f"image of {Path(path).name}")
    Settings = staticmethod(lambda **settings: settings)

    def __init__(self) -> None:
        self.begun: list[SimpleNamespace] = []

    def init(self, **options: Any) -> SimpleNamespace:
        run = SimpleNamespace(options=options, logged=[], summary={}, ended=[])
        run.define_metric = lambda *_, **__: None
        run.log = run.logged.append
        run.finish = lambda *, exit_code: run.ended.append(exit_code)
        self.begun.append(run)
        return run


def test_wandb_gets_the_same_under_the_same_id(made, tmp_path, monkeypatch):
    client = Client()
    monkeypatch.setitem(sys.modules, "wandb", client)
    words = ("wandb", "--project", "p", "--out", tmp_path, "--experiment", "mirrored", made["ended"].run_id)
    assert exit_code(verb.main, "mirror", *words) == 0
    (run,) = client.begun
    assert (run.options["id"], run.options["project"]) == (made["ended"].run_id, "p")
    assert run.options["config"]["aggregator"] == "max"
    assert run.options["config"]["seed"] == 3
    assert [row["mlflow_step"] for row in run.logged[:-1]] == [0, 10, 20, 30, 40]
    assert run.logged[4] == {"test/score": 80.5, "epoch": 2, "mlflow_step": 40}, "numbers of a step together"
    assert run.logged[-1] == {"figures/pooling": "image of pooling.png"}
    assert (run.summary, run.ended) == ({"test/score": 80.5}, [0])
    assert exit_code(verb.main, "mirror", *words) == 0
    assert len(client.begun) == 1, "all of it is there"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("wandb", "--project", "p"), "pip install 'polypool[wandb]'"),
        (("tensorboard", "--out", "x", "--every", "0"), "--every must be above 0"),
        (("tensorboard", "--out", "x", "abc"), "no run 'abc' at sqlite"),
        (("tensorboard", "--out", "x", "--experiment", "mirorred"), "mirrored"),
    ],
)
def test_what_cannot_be_is_said(made, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    more = () if "--experiment" in words else ("--experiment", "mirrored")
    assert exit_code(verb.main, "mirror", *words, *more) == 2
    assert message in capsys.readouterr().err
