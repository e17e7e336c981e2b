"""End-to-end training with Ray and MLflow."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from corpora import make_corpus
from places import PATHS, ROOT
from ray.exceptions import RayActorError
from ray.train import WorkerGroupError
from safetensors.torch import load_file
from toy import same_weights

from polypool.infra import paths
from polypool.infra.errors import AwayError, InputError
from polypool.infra.process import stopping
from polypool.infra.process.stopping import Stopped, stoppable
from polypool.infra.ray import ray_session
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.commands.train import Resume, show, train
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load
from polypool.pipelines.training import train as training
from polypool.pipelines.training.loop import trainer
from polypool.pipelines.training.record import tags
from polypool.pipelines.training.train import TrialOptions, resume, start
from polypool.tasks.run import from_json, to_json

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def run(home):
    """A run on one core, so that its weights do not depend on the machine."""
    return replace(make_corpus(home), cpus=1, figures=False)


@pytest.fixture(scope="module")
def finished(run) -> str:
    """An uninterrupted run, trained without Ray."""
    threads = torch.get_num_threads()
    run_id = start(run)
    assert torch.get_num_threads() == threads
    return run_id


@pytest.fixture
def cluster(one_ray, monkeypatch):
    """Point RAY_ADDRESS to a cluster, so that runs of one worker train on Ray, too."""
    monkeypatch.setenv("RAY_ADDRESS", "auto")


@pytest.fixture
def no_cluster(monkeypatch):
    """Replace Ray by a session of two cores that starts no process."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(training, "ray_session", lambda **_: nullcontext())
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})


def attached(run_id: str) -> Tracker:
    return Tracker.attach(tracking_uri(paths.home()), run_id, running=False)


def best_weights(run_id: str) -> dict[str, torch.Tensor]:
    return load_file(attached(run_id).download("model") / "model.safetensors")


def last_run(home: Path) -> RunRecord:
    return find_runs(tracking_uri(home), "polypool", finished=False)[0]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["here", "on Ray"])
def test_run_is_tracked_and_reevaluation_matches(workers, run, home, request):
    if workers:  # elastic: Ray may start one worker if no more fit
        request.getfixturevalue("one_ray")
        of = replace(run, workers=workers, min_workers=1)
        run_id = start(of)
    else:
        of, run_id = run, request.getfixturevalue("finished")
    (record,) = [r for r in find_runs(tracking_uri(home), "polypool") if r.run_id == run_id]
    expected = {"kind": "train", "task": "image_text", "dataset": "tiny", "aggregator": "mean", "seed": "0"}
    expected |= {"protocol": "whole", "protocol_version.whole": "1"}
    assert expected.items() <= record.tags.items()
    assert len(record.tags["data.features"]) == len(record.tags["data.corpus"]) == 64
    assert record.params["optim.lr"] == "0.02"
    assert record.metrics["whole/rsum"] > 2 * record.metrics["test/chance"]
    assert {"dev/rsum", "dev/best_rsum", "train/loss", "time/train_seconds"} <= record.metrics.keys()
    assert from_json(attached(run_id).read_json("run.json")) == of
    found = run_evaluation.evaluate([load(run_id)], protocols=["whole"], split="test")[0]
    for name in ("rsum", "i2t/meanr"):
        assert found.metrics[name] == pytest.approx(record.metrics[f"whole/{name}"])


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_run_with_killed_workers_matches_uninterrupted_run(finished, run, home):
    markers = [str(home / f"killed {number}") for number in range(3)]
    objective = f"faulty:KilledOften(markers={markers!r}, epochs=[1.4, 3.4, 3.4])"
    with pytest.raises(RuntimeError, match="train resume"):
        start(replace(run, objective=objective, checkpoint_every=2, retries=2))
    record = last_run(home)
    assert record.status == "FAILED"
    assert all(Path(marker).exists() for marker in markers)
    assert resume(record.run_id) == record.run_id
    assert same_weights(best_weights(record.run_id), best_weights(finished))


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_input_errors_are_not_retried(run, home):
    with pytest.raises(InputError, match="the moon is in the wrong phase"):
        start(replace(run, aggregator="failing_aggregator:Refusing", retries=3))
    assert last_run(home).status == "FAILED"


def test_unavailable_service_is_no_reason_against_a_restart():
    for cause, refused in ((AwayError("MLflow does not answer"), 0), (InputError("the loss became nan"), 1)):
        error = RuntimeError("a worker failed")
        error.__cause__ = cause
        assert len([*training._faults(error)]) == refused


def test_workers_compute_float32_without_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    training.set_up(threads=torch.get_num_threads())
    assert not torch.backends.cudnn.allow_tf32


def test_killed_process_resumes_to_same_weights(finished, run, home):
    objective = f"faulty:KilledOften(markers={[str(home / 'ended')]!r}, epochs=[3.4])"
    disturbed = replace(run, objective=objective, checkpoint_every=2, experiment="killed")
    (home / "disturbed.json").write_text(json.dumps(to_json(disturbed)))
    words = [sys.executable, "-m", "polypool", "train"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
    how = {"env": env, "capture_output": True, "text": True, "timeout": 300}
    killed = subprocess.run([*words, str(home / "disturbed.json"), "--trust", "faulty"], **how)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (record,) = find_runs(tracking_uri(home), "killed", finished=False)
    assert record.status == "RUNNING"
    done = subprocess.run([*words, "resume", record.run_id, "--trust", "faulty"], **how)
    assert done.returncode == 0, done.stderr
    assert f"\nrun {record.run_id} finished\n" in f"\n{done.stdout}"
    assert same_weights(best_weights(record.run_id), best_weights(finished))


@pytest.mark.parametrize("place", ["here", pytest.param("cluster", marks=pytest.mark.slow)])
def test_sigterm_saves_checkpoint_that_resumes_to_same_weights(place, finished, run, home, capfd, request):
    if place == "cluster":
        request.getfixturevalue(place)
    for earlier in (home / "runs" / "stopped", *home.glob("runs/*/stop")):
        earlier.unlink(missing_ok=True)
    objective = f"faulty:StoppedOnce(runs={str(home / 'runs')!r}, epoch=2.4, process={os.getpid()})"
    capfd.readouterr()
    with pytest.raises(KeyboardInterrupt), stoppable():
        start(replace(run, objective=objective))
    assert stopping.report_stop() == 143
    record = last_run(home)
    assert record.status == "KILLED"
    said = capfd.readouterr().err
    assert said.endswith(
        f"stopped by SIGTERM; to resume: polypool train resume {record.run_id} --trust faulty\n"
    )
    inside, whole = (samples(home / "runs" / run_id) for run_id in (record.run_id, finished))
    assert 2 < inside / (whole / run.optim.epochs) < 3
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        assert resume(record.run_id) == record.run_id
    assert same_weights(best_weights(record.run_id), best_weights(finished))


@pytest.mark.parametrize("place", ["here", pytest.param("cluster", marks=pytest.mark.slow)])
def test_sigterm_at_end_of_training_lets_run_finish(place, finished, run, home, request):
    if place == "cluster":
        request.getfixturevalue(place)
    for earlier in (home / "runs" / "stopped", *home.glob("runs/*/stop")):
        earlier.unlink(missing_ok=True)
    objective = f"faulty:StoppedOnce(runs={str(home / 'runs')!r}, epoch=5.8, process={os.getpid()})"
    with stoppable():
        run_id = start(replace(run, objective=objective))
    record = last_run(home)
    assert (record.run_id, record.status) == (run_id, "FINISHED")
    assert "whole/rsum" in record.metrics
    assert not (home / "runs" / run_id / "log").exists()
    assert same_weights(best_weights(run_id), best_weights(finished))


def test_run_stopped_while_drawing_figures_is_finished(run, home, monkeypatch, capfd):
    def stopped(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(trainer, "log_pictures", stopped)
    with pytest.raises(Stopped):
        start(replace(run, figures=True))
    record = last_run(home)
    assert record.status == "FINISHED"
    assert {"whole/rsum", "test/score"} <= record.metrics.keys()
    assert f"note: run {record.run_id} is finished: all its scores were logged" in capfd.readouterr().err
    assert not (home / "runs" / record.run_id / "log").exists()


@pytest.mark.parametrize(
    ("request_stop", "error", "raised", "state"),
    [
        (Path.touch, WorkerGroupError("they are gone", {0: RuntimeError("killed")}), Stopped, "KILLED"),
        (lambda stop: stop.parent.rmdir(), WorkerGroupError("gone", {0: RuntimeError()}), Stopped, "KILLED"),
        (str, WorkerGroupError("they are gone", {0: RuntimeError("killed")}), RuntimeError, "FAILED"),
        (str, RayActorError(), RuntimeError, "FAILED"),
    ],
    ids=["stop requested", "sweep ended", "workers lost", "Ray ended"],
)
@pytest.mark.usefixtures("no_cluster")
def test_lost_workers_fail_run_unless_stop_was_requested(
    request_stop, error, raised, state, run, home, tmp_path, monkeypatch
):
    stop = tmp_path / "sweep" / "stop"
    stop.parent.mkdir()

    class Trainer:
        def fit(self) -> None:
            request_stop(stop)
            raise error

    monkeypatch.setattr(training, "_trainer", lambda *_, **__: Trainer())
    with pytest.raises(raised, match="training failed; `polypool" if raised is RuntimeError else None):
        start(replace(run, workers=2), trial=TrialOptions(stop=stop))
    assert last_run(home).status == state


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_prints_resume_command(run, home):
    endless = replace(run, workers=2, optim=replace(run.optim, epochs=10**6))
    tracker = Tracker.start("stopped", uri=tracking_uri(home), home=home, name="n", tags=tags(run), params={})
    tracker.json("run.json", to_json(endless))
    words = [sys.executable, "-m", "polypool", "train", "resume", tracker.run_id]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **pipes)
    limit = time.monotonic() + 300
    while not [*(home / "runs" / tracker.run_id).glob("ray-*/checkpoint_*/progress.json")]:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    titles = " ".join(word for each in started for word in each.cmdline())
    assert all(title in titles for title in ("gcs_server", "ray::RayTrainWorker", "ray::TrainController"))
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 40
    assert process.returncode == 130, said
    _, left = psutil.wait_procs(started, timeout=30)
    assert left == []
    assert said.splitlines()[-1] == f"stopped by Ctrl-C; to resume: polypool train resume {tracker.run_id}"
    assert tracker.status() == "KILLED"


def samples(folder: Path) -> int:
    last = max(folder.glob("**/checkpoint_*/progress.json"), key=lambda path: path.parent.name)
    return json.loads(last.read_text())["samples"]


def test_resume_of_finished_run_changes_nothing(finished, home, capsys):
    (before,) = [r for r in find_runs(tracking_uri(home), "polypool") if r.run_id == finished]
    show(*train(Resume(run_id=finished)))
    said = capsys.readouterr().out
    assert said.startswith(f"run {finished} had finished before, and is not changed\n  test/chance ")
    assert before in find_runs(tracking_uri(home), "polypool")


@pytest.mark.usefixtures("no_cluster")
def test_more_workers_than_cores_are_refused(run):
    with pytest.raises(InputError, match="4 workers need as many cores, and the cluster has 2"):
        start(replace(run, workers=4))


@pytest.mark.parametrize(
    ("why", "kind", "message"),
    [
        ("The current node timed out during startup. This could happen", AwayError, "too many programs run"),
        ("another fault", RuntimeError, "another fault"),
    ],
)
def test_ray_startup_timeout_is_reported_as_overload(why, kind, message, monkeypatch):
    def fail(**_: object) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(kind, match=message), ray_session():
        pass


@pytest.mark.parametrize(
    ("address", "message"),
    [("http://127.0.0.1:8265", "ray job submit"), ("127.0.0.1:9", "no Ray cluster answers")],
)
def test_ray_address_without_cluster_is_refused(address, message, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=message), ray_session():
        pass
