"""Runs with checkpoints in object storage resume on machines that share no folder."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from corpora import make_corpus
from object_storage import KEYS, Bucket
from places import PATHS, ROOT
from programs import begin
from safetensors.torch import load_file
from toy import same_weights, train_undisturbed
from workers import run_workers

from polypool.infra.storage import Url, place
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.training.checkpoint import checkpoints
from polypool.tasks.run import Run, to_json

pytestmark = [pytest.mark.ray, pytest.mark.slow]

COMMAND = """
import json, sys
from pathlib import Path
from polypool.infra.process.command import command
from polypool.pipelines.training.train import resume, start
from polypool.tasks.run import from_json

told = sys.argv[1]
run = lambda: from_json(json.loads(Path(told).read_text()))
command(lambda: start(run()) if told.endswith("run.json") else resume(told))()
"""
"""Start the run of a file, or resume the run of an id."""


@pytest.fixture
def machines(tmp_path, bucket, monkeypatch) -> list[Path]:
    """Homes of two machines that share a tracking store and object storage; the first is active."""
    homes = [tmp_path / name for name in ("first", "second")]
    for home in homes:
        (home / "runs").mkdir(parents=True)
    monkeypatch.setenv("POLYPOOL_HOME", str(homes[0]))
    monkeypatch.setenv("POLYPOOL_RUNS", f"{bucket.url}/team/runs")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    return homes


def kill_at_a_checkpoint(run: Run, bucket: Bucket, tmp_path: Path) -> str:
    """Start a run in another process, kill it and its children at a checkpoint; return its stderr."""
    (tmp_path / "run.json").write_text(json.dumps(to_json(run)))
    driver = begin("-c", COMMAND, str(tmp_path / "run.json"), env=os.environ, start_new_session=True)
    limit, whole = time.monotonic() + 300, re.compile(r"/checkpoint_[^/]+/digests\.json$")
    while not [key for key in bucket.keys("team/runs") if whole.search(key)]:
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.05)
    began = psutil.Process(driver.pid).children(recursive=True)
    os.killpg(driver.pid, signal.SIGKILL)
    said = driver.communicate()[1]
    for process in psutil.wait_procs(began, timeout=30)[1]:
        process.kill()
    return said


def test_other_machine_resumes_killed_run_to_same_weights(machines, bucket, tmp_path, monkeypatch):
    first, second = machines
    run: Run = replace(make_corpus(tmp_path), cpus=1, workers=2, figures=False, log_every=1)
    run = replace(run, optim=replace(run.optim, epochs=8))
    said = kill_at_a_checkpoint(run, bucket, tmp_path)
    (record,) = find_runs(tracking_uri(first), run.experiment, finished=False)
    at = place(f"{bucket.url}/team/runs/{record.run_id}")
    assert record.status == "RUNNING"
    assert 0 < samples(at) < 8 * 96

    monkeypatch.setenv("POLYPOOL_HOME", str(second))
    monkeypatch.delenv("POLYPOOL_RUNS")
    # in a new process: the Ray cluster of other tests was started without the storage settings
    subprocess.run([sys.executable, "-c", COMMAND, record.run_id], cwd=ROOT, check=True)
    tracker = Tracker.attach(tracking_uri(first), record.run_id, running=False)
    assert (tracker.status(), samples(at)) == ("FINISHED", 8 * 96)
    kept = b"".join(map(bucket.read, bucket.keys())) + said.encode()
    assert not any(secret.encode() in kept for secret in KEYS.values())

    run_workers(train_undisturbed, json.dumps(to_json(run)), str(tmp_path))
    ours = load_file(tracker.download("model") / "model.safetensors")
    theirs = load_file(tmp_path / "model" / "model.safetensors")
    assert same_weights(ours, theirs)
    losses = json.loads((tmp_path / "loss.json").read_text())
    assert tracker.history("train/loss") == [tuple(pair) for pair in losses]
    again = tracker._call("get_metric_history", "train/loss")
    assert len(again) == len(losses), "each step must be logged once"


def samples(at: Url) -> int:
    """Return the number of samples at the last checkpoint."""
    return int(checkpoints(at)[-1].rpartition("/")[2].split("_")[1])
