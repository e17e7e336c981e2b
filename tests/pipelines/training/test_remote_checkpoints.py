"""Runs whose checkpoints lie in object storage: machines that share no folder go on with each other's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import in_process
import pytest
import torch
from corpora import make_corpus
from object_storage import KEYS, Bucket, Fault, cut
from places import ROOT, SUPPORT
from safetensors.torch import load_file

from infra.ray.ending import kill, started_by, wait_for
from infra.storage import checkpoints
from infra.storage.places import place
from infra.tracking import Tracker, find_runs, tracking_uri
from pipelines.runs import rows
from pipelines.training import runs
from pipelines.training.runs import resume, start
from tasks.run import Run, to_json

pytestmark = pytest.mark.ray

TRAIN = """
import json, sys
from pathlib import Path
from infra.errors import command
from pipelines.training.runs import start
from tasks.run import from_json

command(lambda: start(from_json(json.loads(Path(sys.argv[1]).read_text()))))()
"""


@pytest.fixture
def machines(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Homes of two machines, which share a tracking store and object storage; we are at the first."""
    homes = [tmp_path / name for name in ("first", "second")]
    for home in homes:
        home.mkdir()
    monkeypatch.setenv("POLYPOOL_HOME", str(homes[0]))
    monkeypatch.setenv("POLYPOOL_RUNS", f"{bucket.url}/team/runs")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    yield homes


def best_weights(run_id: str, home: Path) -> dict[str, torch.Tensor]:
    tracker = Tracker.attach(tracking_uri(home), run_id, running=False)
    return load_file(tracker.download("model") / "model.safetensors")


def test_another_machine_goes_on_with_the_run_of_a_killed_one_to_the_same_weights(
    machines: list[Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines
    run: Run = replace(make_corpus(tmp_path), cpus=1, figures=False, log_every=1)
    run = replace(run, optim=replace(run.optim, epochs=12))
    (tmp_path / "run.json").write_text(json.dumps(to_json(run)))
    bucket.server.faults += [
        Fault(method="PUT", key="model.safetensors", times=2),
        Fault(method="PUT", key="lease.json", times=1),
        Fault(method="GET", key="lease.json", times=1, spoil=cut(5)),
        Fault(method="PUT", key=".json", times=3),
    ]
    driver = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(tmp_path / "run.json")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    limit, whole = time.monotonic() + 300, re.compile(r"/checkpoint_\w+\.json$")
    while not [key for key in bucket.keys("team/runs") if whole.search(key)]:
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.1)
    began = started_by(driver.pid)
    os.killpg(driver.pid, signal.SIGKILL)
    said = driver.communicate()[1]
    kill(wait_for(began, seconds=30))
    assert not any(secret in said for secret in KEYS.values())
    (record,) = find_runs(tracking_uri(first), run.experiment, finished=False)
    assert record.status == "RUNNING"
    at = place(f"{bucket.url}/team/runs/{record.run_id}")
    (row,) = rows(tracking_uri(second), run.experiment, home=second)
    assert row.behind == "nobody", "its process is gone"
    inside = int(checkpoints.newest(at).split("_")[1])
    assert 0 < inside < 12 * 2 * 48

    monkeypatch.setenv("POLYPOOL_HOME", str(second))
    monkeypatch.delenv("POLYPOOL_RUNS")
    bucket.server.faults.append(Fault(key="state.pt", times=2, spoil=cut(100)))
    assert resume(record.run_id) == record.run_id
    assert not [fault for fault in bucket.server.faults if fault.times]
    assert sum(key.endswith("model.safetensors") for key in bucket.keys("team/runs")) == 1, "older ones go"

    monkeypatch.setattr(runs, "launch", in_process.launch)
    threads = torch.get_num_threads()
    torch.set_num_threads(run.cpus)
    undisturbed = start(replace(run, experiment="undisturbed"))
    torch.set_num_threads(threads)
    ours, theirs = best_weights(record.run_id, first), best_weights(undisturbed, first)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    tracker = Tracker.attach(tracking_uri(first), record.run_id, running=False)
    reference = Tracker.attach(tracking_uri(first), undisturbed, running=False)
    assert tracker.status() == "FINISHED"
    assert tracker.history("train/loss") == reference.history("train/loss")
    for key in bucket.keys():
        assert not any(secret.encode() in bucket.read(key) for secret in KEYS.values())
