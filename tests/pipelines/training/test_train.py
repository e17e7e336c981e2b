"""Training through Ray and MLflow, as a user does it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from corpora import make_corpus
from kept import keep_run
from places import ROOT, SUPPORT
from safetensors.torch import load_file

from infra import paths
from infra.errors import InputError
from infra.ray.session import ray_session
from infra.tracking import Tracker, find_runs, tracking_uri
from pipelines import evaluate
from pipelines.models import load_run
from pipelines.training.runs import resume, start
from tasks.run import from_json

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of its own, with a corpus; Ray's workers find the tests' modules."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYPOOL_HOME", str(folder))
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{SUPPORT}")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield folder


@pytest.fixture(scope="module")
def run(home):
    return make_corpus(home)


@pytest.fixture(scope="module")
def ray(home):
    """One private Ray for the module, which runs started inside it share."""
    with ray_session(cpus=2):
        yield


@pytest.fixture(scope="module")
def finished(run, ray, home) -> str:
    return start(run)


def best_weights(run_id: str) -> dict[str, torch.Tensor]:
    tracker = Tracker.attach(tracking_uri(paths.home()), run_id, running=False)
    return load_file(tracker.download("model") / "model.safetensors")


def test_a_run_is_tracked_whole(finished, run, home):
    (record,) = [r for r in find_runs(tracking_uri(home), "polypool") if r.run_id == finished]
    expected = {"kind": "train", "task": "image_text", "dataset": "tiny", "aggregator": "mean", "seed": "0"}
    assert expected.items() <= record.tags.items()
    assert record.tags["protocol"] == "whole"
    assert record.tags["protocol_version.whole"] == "1"
    assert len(record.tags["data.features"]) == len(record.tags["data.corpus"]) == 64
    assert record.params["optim.lr"] == "0.02"
    assert record.metrics["whole/rsum"] > 2 * record.metrics["test/chance"]
    assert {"dev/rsum", "dev/best_rsum", "train/loss", "time/train_seconds"} <= record.metrics.keys()
    tracker = Tracker.attach(tracking_uri(home), finished, running=False)
    assert from_json(tracker.read_json("run.json")) == run


def test_a_finished_run_is_evaluated_again_to_the_same_numbers(finished, home):
    trained = load_run(finished)
    found = evaluate.evaluate([trained], protocol="whole", split="test")
    logged = trained.tracker.metrics()
    assert found.metrics["rsum"] == pytest.approx(logged["whole/rsum"])
    assert found.metrics["i2t/meanr"] == pytest.approx(logged["whole/i2t/meanr"])


def test_an_ensemble_is_the_mean_of_score_matrices(finished, run, ray):
    other = keep_run(replace(run, seed=1))
    members = [load_run(finished), load_run(other)]
    found = evaluate.evaluate(members, protocol="whole", split="test")
    first, second = (m.adapter.scorer(m.model, "test")(slice(None), slice(None)) for m in members)
    expected = members[0].adapter.evaluate_scores(lambda r, c: ((first + second) / 2)[r, c], "test", "whole")
    assert found.metrics == pytest.approx(expected.metrics)


def test_a_killed_worker_starts_again_and_ends_with_the_same_weights(finished, run, ray, home):
    marker = home / "killed"
    objective = f"faulty:KilledOnce(marker={str(marker)!r}, epoch=2.4)"
    killed = start(replace(run, objective=objective, checkpoint_every=2, retries=1))
    assert marker.exists()
    ours, theirs = best_weights(killed), best_weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_interrupted_run_is_resumed_under_its_own_id(finished, run, ray, home):
    marker = home / "interrupted"
    objective = f"faulty:KilledOnce(marker={str(marker)!r}, epoch=2.4)"
    with pytest.raises(RuntimeError, match="train resume"):
        start(replace(run, objective=objective))
    (record, *_) = find_runs(tracking_uri(home), "polypool", finished=False)
    assert record.status == "FAILED"
    assert resume(record.run_id) == record.run_id
    ours, theirs = best_weights(record.run_id), best_weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_two_workers_train_under_ray(run, ray):
    run_id = start(replace(run, workers=2))
    metrics = Tracker.attach(tracking_uri(paths.home()), run_id, running=False).metrics()
    assert metrics["whole/rsum"] > 2 * metrics["test/chance"]


def test_more_workers_than_cores_are_refused(run, ray):
    with pytest.raises(InputError, match="4 workers need as many cores"):
        start(replace(run, workers=4))


def test_what_a_worker_refuses_reaches_the_user(run, ray):
    with pytest.raises(InputError, match="wait a week"):
        start(replace(run, objective="faulty:Refusing"))


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
