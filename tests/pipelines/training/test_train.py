"""Training through Ray and MLflow, as a user does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import make_corpus
from kept import keep_run
from places import ROOT
from ray.exceptions import RayActorError
from ray.train import WorkerGroupError
from safetensors.torch import load_file

from polypool.infra import paths
from polypool.infra.errors import FaultError, InputError
from polypool.infra.process import stopping
from polypool.infra.process.stopping import Stopped, stoppable
from polypool.infra.ray.private import started_by
from polypool.infra.ray.session import ray_session
from polypool.infra.tracking import Tracker, find_runs, tracking_uri
from polypool.pipelines.commands import train as verb
from polypool.pipelines.commands.train import show
from polypool.pipelines.models import run_evaluation
from polypool.pipelines.models.trained import load_run
from polypool.pipelines.training import driver, on_ray
from polypool.pipelines.training.fitting import TrialOptions
from polypool.pipelines.training.launch import resume, start
from polypool.pipelines.training.recording import tags
from polypool.tasks.run import from_json, to_json

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def cluster(one_ray):
    """A cluster that RAY_ADDRESS names, where a run of one worker needs Ray, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "auto")
        yield


@pytest.fixture(scope="module")
def run(home):
    """A run on one core, whose weights then do not depend on where it is trained."""
    return replace(make_corpus(home), cpus=1)


@pytest.fixture(scope="module")
def finished(run) -> str:
    """A run that nothing disturbed, trained without Ray."""
    threads = torch.get_num_threads()
    torch.set_num_threads(run.cpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS")
        run_id = start(run)
    torch.set_num_threads(threads)
    return run_id


@pytest.fixture(scope="module")
def distributed(run) -> str:
    """A run of two workers, or one where there is room for no more: Ray asks how many at every turn."""
    return start(replace(run, workers=2, min_workers=1))


def attached(run_id: str) -> Tracker:
    return Tracker.attach(tracking_uri(paths.home()), run_id, running=False)


def best_weights(run_id: str) -> dict[str, torch.Tensor]:
    return load_file(attached(run_id).download("model") / "model.safetensors")


def test_a_run_of_two_workers_is_tracked_whole(distributed, run, home):
    (record,) = [r for r in find_runs(tracking_uri(home), "polypool") if r.run_id == distributed]
    expected = {"kind": "train", "task": "image_text", "dataset": "tiny", "aggregator": "mean", "seed": "0"}
    assert expected.items() <= record.tags.items()
    assert record.tags["protocol"] == "whole"
    assert record.tags["protocol_version.whole"] == "1"
    assert len(record.tags["data.features"]) == len(record.tags["data.corpus"]) == 64
    assert record.params["optim.lr"] == "0.02"
    assert record.metrics["whole/rsum"] > 2 * record.metrics["test/chance"]
    assert {"dev/rsum", "dev/best_rsum", "train/loss", "time/train_seconds"} <= record.metrics.keys()
    tracker = Tracker.attach(tracking_uri(home), distributed, running=False)
    assert from_json(tracker.read_json("run.json")) == replace(run, workers=2, min_workers=1)


@pytest.mark.slow
def test_a_run_without_an_epoch_scores_the_model_that_it_begins_with(run):
    at_once = replace(run, optim=replace(run.optim, epochs=0), seed=3)
    made = keep_run(at_once)
    run_id = start(at_once)
    logged = attached(run_id).metrics()
    expected = run_evaluation.evaluate([load_run(made)], protocols=["whole"], split="test")[0]
    assert logged["whole/rsum"] == pytest.approx(expected.metrics["rsum"])
    assert logged["dev/best_rsum"] == logged["dev/rsum"]
    assert logged["weights/all"] > 0
    assert not {"train/loss", "cost/step", "time/step_ms"} & logged.keys()
    for name, weight in best_weights(made).items():
        assert weight.equal(best_weights(run_id)[name])
    assert resume(run_id) == run_id


def test_a_finished_run_is_evaluated_again_to_the_same_numbers(distributed):
    trained = load_run(distributed)
    found = run_evaluation.evaluate([trained], protocols=["whole"], split="test")[0]
    logged = trained.tracker.metrics()
    assert found.metrics["rsum"] == pytest.approx(logged["whole/rsum"])
    assert found.metrics["i2t/meanr"] == pytest.approx(logged["whole/i2t/meanr"])


def test_an_ensemble_is_the_mean_of_score_matrices(finished, run):
    other = keep_run(replace(run, seed=1))
    members = [load_run(finished), load_run(other)]
    found = run_evaluation.evaluate(members, protocols=["whole"], split="test")[0]
    first, second = (m.adapter.scorer(m.model, "test")(slice(None), slice(None)) for m in members)
    expected = members[0].adapter.evaluate_scores(lambda r, c: ((first + second) / 2)[r, c], "test", "whole")
    assert found.metrics == pytest.approx(expected.metrics)


@pytest.mark.slow
def test_a_worker_killed_again_and_again_goes_on_and_ends_with_the_weights_of_an_undisturbed_run(
    finished, run, home, capfd
):
    markers = [str(home / f"killed {number}") for number in range(3)]
    runs_folder = str(home / "runs")
    objective = f"faulty:KilledOften(runs={runs_folder!r}, markers={markers!r}, epochs=[1.4, 3.4, 3.4])"
    with pytest.raises(RuntimeError, match="train resume"):
        start(replace(run, objective=objective, checkpoint_every=2, retries=1))
    (record, *_) = find_runs(tracking_uri(home), "polypool", finished=False)
    assert record.status == "FAILED"
    assert all(Path(marker).exists() for marker in markers), (
        "a checkpoint lies between the first two, and none after"
    )
    assert capfd.readouterr().err.count("begins again from its last checkpoint, now: 1 in a row") == 2
    assert resume(record.run_id) == record.run_id
    ours, theirs = best_weights(record.run_id), best_weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_with_which_the_run_goes_on(finished, run, home, capfd):
    objective = f"faulty:StoppedOnce(runs={str(home / 'runs')!r}, epoch=2.4, process={os.getpid()})"
    capfd.readouterr()
    with pytest.raises(KeyboardInterrupt), stoppable():
        start(replace(run, objective=objective))
    assert stopping.report_stop() == 143
    (record, *_) = find_runs(tracking_uri(home), "polypool", finished=False)
    assert record.status == "KILLED"
    said = capfd.readouterr().err
    assert said.endswith(
        f"stopped by SIGTERM; to go on: polypool train resume {record.run_id} --trust faulty\n"
    )
    inside, whole = (samples(home / "runs" / run_id) for run_id in (record.run_id, finished))
    assert 2 < inside / (whole / run.optim.epochs) < 3
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS")
        assert resume(record.run_id) == record.run_id
    ours, theirs = best_weights(record.run_id), best_weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("asked", "state"),
    [(Path.touch, "KILLED"), (lambda stop: stop.parent.rmdir(), "KILLED"), (str, "FAILED")],
)
def test_workers_that_are_ended_with_a_run_that_was_asked_to_stop_are_no_failure(
    asked, state, run, home, tmp_path, monkeypatch
):
    stop = tmp_path / "sweep" / "stop"
    stop.parent.mkdir()

    class Trainer:
        def fit(self) -> None:
            asked(stop)
            raise WorkerGroupError("they are gone", {0: RuntimeError("killed")})

    monkeypatch.setattr(on_ray, "_trainer", lambda *_, **__: Trainer())
    with pytest.raises(Stopped if state == "KILLED" else RuntimeError):
        start(replace(run, workers=2), trial=TrialOptions(stop=stop))
    (record, *_) = find_runs(tracking_uri(home), "polypool", finished=False)
    assert record.status == state


def test_the_end_of_ray_is_a_fault_that_another_try_may_survive(run, home, monkeypatch):
    class Trainer:
        def fit(self) -> None:
            raise RayActorError

    monkeypatch.setattr(on_ray, "_trainer", lambda *_, **__: Trainer())
    with pytest.raises(FaultError, match=r"Ray ended under the run; `polypool train resume"):
        start(run)
    (record, *_) = find_runs(tracking_uri(home), "polypool", finished=False)
    assert record.status == "FAILED"


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind_and_says_what_to_type(run, home):
    endless = replace(run, workers=2, optim=replace(run.optim, epochs=10**6))
    tracker = Tracker.start("stopped", uri=tracking_uri(home), home=home, name="n", tags=tags(run), params={})
    tracker.json("run.json", to_json(endless))
    words = [sys.executable, "-m", "polypool", "train", "resume", tracker.run_id]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **pipes)
    limit = time.monotonic() + 300
    while not [*(home / "runs" / tracker.run_id).glob("checkpoint_*/progress.json")]:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.1)
    started = started_by(process.pid)
    titles = " ".join(word for each in started for word in each.cmdline())
    assert all(title in titles for title in ("gcs_server", "ray::RayTrainWorker", "ray::TrainController"))
    for title in ("PlacementGroupCleaner", "DatasetManager", "AutoscalingCoordinator", "ray-dashboard"):
        assert title not in titles, "a run alone has no use for it"
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 30, "it takes 2 seconds where nobody else is at work"
    assert process.returncode == 130
    assert [each for each in started if each.is_running() and each.status() != "zombie"] == []
    assert said.splitlines()[-1] == f"stopped by Ctrl-C; to go on: polypool train resume {tracker.run_id}"
    assert "Traceback" not in said
    assert tracker.status() == "KILLED"


def samples(folder: Path) -> int:
    """Return how many samples the checkpoint of a run has seen."""
    (progress,) = folder.glob("checkpoint_*/progress.json")
    return json.loads(progress.read_text())["samples"]


def test_a_run_goes_on_only_where_it_has_something_left_to_do_and_to_go_on_with(finished, home, capsys):
    (before,) = [r for r in find_runs(tracking_uri(home), "polypool") if r.run_id == finished]
    work = driver.Driver(work=driver.Resume(run_id=finished))
    show(verb.watched(work, retries=work.retries))
    said = capsys.readouterr().out
    assert said.startswith(f"run {finished} had finished before, and is left as it is\n  test/chance ")
    assert before in find_runs(tracking_uri(home), "polypool")

    folder = home / "runs" / finished
    attached(finished).finish("KILLED")
    (checkpoint,) = folder.glob("checkpoint_*")
    (checkpoint / "state.pt").rename(folder / "state.pt")
    with pytest.raises(
        InputError, match=rf"{checkpoint.name} lacks state.pt.*polypool train rerun {finished}`"
    ):
        resume(finished)
    folder.rename(home / "elsewhere")
    with pytest.raises(InputError, match=f"there is no checkpoint in {folder}. Bring the folder back"):
        resume(finished)
    (home / "elsewhere").rename(folder)
    (folder / "state.pt").rename(checkpoint / "state.pt")
    assert attached(finished).status() == "KILLED", "it was not begun"
    attached(finished).finish()


def test_more_workers_than_cores_are_refused(run):
    with pytest.raises(InputError, match="4 workers need as many cores"):
        start(replace(run, workers=4))


def test_a_server_that_does_not_answer_is_said_before_training(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9"):
        start(run)


def test_a_job_server_is_no_cluster_address(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    with pytest.raises(InputError, match="ray job submit"), ray_session():
        pass


def test_a_dead_cluster_address_is_said_at_once(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(InputError, match="no Ray cluster answers"), ray_session():
        pass


@pytest.mark.slow
def test_a_run_begins_with_the_weights_of_another(finished, run, capfd):
    again = start(replace(run, init=finished, optim=replace(run.optim, epochs=0)))
    assert f"weights are those of run {finished}" in capfd.readouterr().out
    ours, theirs = best_weights(again), best_weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
