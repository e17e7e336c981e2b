"""The list of runs, and marking of runs whose process is dead."""

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from toy import toy_run
from verbs import called

from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.comparison import runs as run_list
from polypool.pipelines.training import train as training
from polypool.pipelines.training.record import COLLAPSED, locked_run, run_folder, tags, take_run
from polypool.tasks.run import to_params


@pytest.fixture
def made(home) -> Iterator[dict[str, Tracker]]:
    """Runs of an experiment: alive, dead, on another machine, and ended."""
    made = {}
    with ThreadPoolExecutor(1) as somebody:
        for name in ("alive", "dead", "elsewhere", "ended"):
            run = toy_run(aggregator="max" if name == "alive" else "mean", seed=3)
            made[name] = Tracker.start(
                "several", uri=tracking_uri(home), home=home, name=name, tags=tags(run), params=to_params(run)
            )
        lease = somebody.submit(take_run, made["alive"]).result()
        made["alive"].log({"epoch": 2}, step=10)
        made["alive"].tags({COLLAPSED: "at step 10, all scores are equal"})
        run_folder(home, made["dead"].run_id).mkdir(parents=True)
        run_folder(home, made["ended"].run_id).mkdir(parents=True)
        made["ended"].finish("FAILED")
        yield made
        somebody.submit(lease.release).result()
    for tracker in made.values():
        tracker._call("delete_run")


def said(*words: str) -> str:
    _, out, _ = called("runs", "--experiment", "several", *words)
    return out


def line_of(tracker: Tracker, lines: list[str]) -> str:
    (line,) = (line for line in lines if line.startswith(f"{tracker.run_id[:8]} "))
    return line


def test_runs_are_sorted_by_task_and_score(home):
    uri, made = tracking_uri(home), {}
    for name, task, score, more in (
        ("mean", "vqa", 24.2, {}),
        ("gpo", "vqa", 25.0, {}),
        ("failed", "vqa", None, {}),
        ("max", "image_text", 231.9, {"whole/rsum": 1.0}),
        ("esa", "image_text", 237.1, {"test/chance_normalised": 38.0}),
        ("lip", "image_text", 233.8, {"test/chance_normalised": 39.0}),
    ):
        run = replace(toy_run(aggregator=name if score else "kmax", experiment="several"), task=task)
        made[name] = Tracker.start(
            "several", uri=uri, home=home, name=name, tags=tags(run), params=to_params(run)
        )
        made[name].log(({"test/score": score} if score else {}) | more, step=1)
        made[name].finish("FINISHED" if score else "FAILED")
    table = said().splitlines()
    lines = [line.split() for line in table[2:]]
    assert [line[:5] for line in lines] == [
        [made["lip"].run_id[:8], "image_text", "toy", "lip", "0"],
        [made["esa"].run_id[:8], "image_text", "toy", "esa", "0"],
        [made["max"].run_id[:8], "image_text", "toy", "max", "0"],
        [],
        [made["gpo"].run_id[:8], "vqa", "toy", "gpo", "0"],
        [made["mean"].run_id[:8], "vqa", "toy", "mean", "0"],
        [made["failed"].run_id[:8], "vqa", "toy", "kmax", "0"],
    ]
    assert [line[5] for line in lines if line] == ["233.8", "237.1", "231.9", "25.0", "24.2", "whole"]
    for tracker in made.values():
        tracker._call("delete_run")


def test_list_shows_progress_and_process_of_each_run(made):
    lines = said().splitlines()
    (header,) = (line for line in lines if line.startswith("run "))
    names = "run task data features aggregator seed score protocol recipe state epoch age trained by"
    assert header.split() == names.split()
    of = {name: line_of(tracker, lines) for name, tracker in made.items()}
    here = f"process {os.getpid()} on {socket.gethostname()}"
    assert of["alive"].split()[1:8] == ["image_text", "toy", "max", "3", "whole", "toy", "RUNNING,"]
    assert f"{made['alive'].run_id} collapsed: at step 10, all scores are equal" in lines
    assert sum("collapsed" in line for line in lines) == 2
    assert "2 of 3" in of["alive"]
    assert of["alive"].endswith(f" s  {here}")
    assert of["dead"].endswith(" s  nobody")
    assert "0 of 3" in of["dead"]
    assert of["elsewhere"].endswith(" s  unknown: its folder is not here")
    assert " FAILED " in of["ended"]
    assert of["ended"].endswith(" s")
    assert lines[-1].startswith("1 of them shown as running is trained by nobody: --mark-dead")
    listed = {row["run_id"]: row for row in json.loads(said("--json"))}
    assert [listed[of.run_id]["process"] for of in made.values()] == ["alive", "dead", "unknown", ""]
    alive = listed[made["alive"].run_id]
    assert (alive["epoch"], alive["epochs"]) == (2, 3)
    assert alive["holder"].startswith(f"{here}: ")
    assert 0 <= alive["age"] < 600


def test_mark_dead_changes_only_dead_runs(made):
    here = sorted(run_folder(Path.cwd(), "").glob("*"))
    out = said("--mark-dead")
    assert out.startswith(f"run {made['dead'].run_id}: no process trains it, now KILLED\n\n")
    states = {name: tracker.status() for name, tracker in made.items()}
    assert states == {"alive": "RUNNING", "dead": "KILLED", "elsewhere": "RUNNING", "ended": "FAILED"}
    assert said("--mark-dead").startswith("no dead run was found\n")
    assert sorted(run_folder(Path.cwd(), "").glob("*")) == here, "files must be written only in the home"


def test_mark_dead_applies_unsent_final_status(made, home, monkeypatch):
    def nobody(*_: object, **__: object) -> None:
        raise InputError("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "finish", nobody)
        training.send(made["dead"], "FINISHED")
    found = run_list.list_runs(tracking_uri(home), "several", home=home)
    assert run_list.mark_dead(tracking_uri(home), found, home=home) == {made["dead"].run_id: "FINISHED"}


def test_resumed_run_is_not_marked_dead(made, home):
    found = run_list.list_runs(tracking_uri(home), "several", home=home)
    with ThreadPoolExecutor(1) as somebody:
        lease = somebody.submit(take_run, made["dead"]).result()
        assert run_list.mark_dead(tracking_uri(home), found, home=home) == {}
        somebody.submit(lease.release).result()
    assert made["dead"].status() == "RUNNING"


def test_sweep_without_process_is_marked_dead(made, home):
    place = {"uri": tracking_uri(home), "home": home, "name": "sweep"}
    tracker = made["sweep"] = Tracker.start(
        "several", **place, tags={"kind": "sweep", "recipe": "toy"}, params={}
    )
    with ThreadPoolExecutor(1) as somebody, ExitStack() as stack:
        somebody.submit(stack.enter_context, locked_run(tracker)).result()
        line = line_of(tracker, said("--mark-dead").splitlines())
        assert "sweep of toy" in line
        assert line.endswith(f"process {os.getpid()} on {socket.gethostname()}")
        somebody.submit(stack.close).result()
    assert tracker.status() == "FINISHED"
    assert tracker.run_id[:8] not in said()
    assert not run_folder(home, tracker.run_id).exists()
    again = Tracker.attach(tracking_uri(home), tracker.run_id)
    run_folder(home, again.run_id).mkdir()
    out = said("--mark-dead")
    assert f"run {again.run_id}: no process trains it, now KILLED" in out
