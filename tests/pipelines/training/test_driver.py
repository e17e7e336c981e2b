"""A driver that is killed: another goes on with its run, which ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from corpora import make_corpus
from places import ROOT, SUPPORT
from safetensors.torch import load_file

from polypool.infra.lease.on_disk import NAME, Holder
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.training.driver import Driver, Resume
from polypool.pipelines.training.launch import start
from polypool.pipelines.training.run_folder import run_folder
from polypool.tasks.run import Run, to_json

TRAIN = """
import json, os, signal, sys
from pathlib import Path
import polypool.pipelines.commands.train as verb
from polypool.pipelines.training import driver
from polypool.tasks.run import from_json

run, marker = from_json(json.loads(Path("run.json").read_text())), Path("marker")
verb.parse = lambda words: run if words == ["it"] else None

do = driver.Driver.do
def killed_once(*arguments):
    '''Train; the first process is killed in the third epoch.'''
    from polypool.pipelines.training.loop import Trainer
    step = Trainer.train_step
    def killed(trainer, batch):
        if trainer.step == 2 * trainer.order.epoch_steps + 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(trainer, batch)
    Trainer.train_step = killed
    return do(*arguments)

driver.Driver.do = killed_once
verb.main()
"""


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    made = make_corpus(home)
    return replace(made, cpus=1, retries=1, experiment="killed", optim=replace(made.optim, epochs=4))


@pytest.mark.slow
def test_a_killed_driver_is_followed_by_one_that_ends_the_run(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(to_json(run)))
    paths = [ROOT, SUPPORT, SUPPORT / "files", SUPPORT / "training"]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, "it"],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was killed (SIGKILL) and is begun again now") == 1
    (record,) = find_runs(tracking_uri(home), "killed", finished=False)
    assert record.status == "FINISHED"
    assert done.stdout.startswith(f"run {record.run_id} finished\n")

    undisturbed = start(replace(run, experiment="undisturbed"))
    ours, theirs = (
        load_file(tracker.download("model") / "model.safetensors")
        for tracker in map(attached, (record.run_id, undisturbed))
    )
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert attached(record.run_id).history("train/loss") == attached(undisturbed).history("train/loss")


def test_the_process_that_watches_is_small_and_has_one_thread() -> None:
    check = "import polypool.pipelines.commands.train, sys, threading\n"
    check += "print(*{'torch', 'ray', 'mlflow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n", "it is forked"


def attached(run_id: str) -> Tracker:
    from polypool.infra.paths import home

    return Tracker.attach(tracking_uri(home()), run_id, running=False)


def test_what_a_dead_driver_left_is_put_in_order(run: Run, home: Path) -> None:
    tracker = Tracker.start("given up", uri=tracking_uri(home), home=home, name="n", tags={}, params={})
    folder = run_folder(home, tracker.run_id)
    driver = Driver(work=Resume(run_id=tracker.run_id, trust=("a.module",)))
    assert driver.progress("") is driver.progress(tracker.run_id) is None
    assert driver.died("", 7) == ""
    folder.mkdir(parents=True)
    latest = {"latest_checkpoint_result": {"checkpoint_dir_name": "checkpoint_1"}}
    (folder / "checkpoint_manager_snapshot.json").write_text(json.dumps(latest))
    assert driver.progress(tracker.run_id) == "checkpoint_1"
    (folder / NAME).write_text(json.dumps(asdict(replace(Holder.this(), process=7))))
    again = f"polypool train resume {tracker.run_id} --trust a.module"
    assert driver.died(tracker.run_id, 7) == again
    assert not (folder / NAME).exists()
    driver.given_up(tracker.run_id)
    assert tracker.status() == "FAILED"
    tracker.finish("FINISHED")
    driver.given_up(tracker.run_id)
    assert tracker.status() == "FINISHED"
    driver.given_up("")
