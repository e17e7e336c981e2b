"""One run survives the loss of a worker, a node and its driver in turn, with the results of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from corpora import make_corpus
from safetensors.torch import load_file
from toy import same_weights, train_undisturbed
from workers import run_workers

from chaos.cluster import Job, two_nodes
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.training.recording import tags
from polypool.tasks.run import Run, to_json

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def run(home) -> Run:
    made = make_corpus(home)
    optim = replace(made.optim, epochs=9)
    return replace(made, cpus=1, workers=2, retries=3, log_every=1, figures=False, optim=optim)


def test_a_run_survives_its_worker_its_node_and_its_driver(run, home, tmp_path):
    tracker = Tracker.start("chaos", uri=tracking_uri(home), home=home, name="n", tags=tags(run), params={})
    tracker.json("run.json", to_json(run))
    words = ["python", "-m", "polypool", "train", "resume", tracker.run_id]
    with two_nodes() as cluster:
        job = Job(cluster=cluster, words=words, home=home, run_id=tracker.run_id)

        def kill_worker() -> None:
            cluster.workers()[-1].kill()

        def kill_node() -> None:
            cluster.lose_node()
            cluster.add_node()

        def kill_driver() -> None:
            os.kill(job.driver(), signal.SIGKILL)

        last = None
        for fault in (kill_worker, kill_node, kill_driver):
            last = job.wait_for_checkpoint(after=last)
            assert last, job.log()
            fault()
        job.wait_for(lambda: False, "its end")
        assert job.state == "SUCCEEDED", job.log()
        assert job.log().count("was killed (SIGKILL) and is begun again") == 1
    run_workers(train_undisturbed, json.dumps(to_json(run)), str(tmp_path))
    ours = load_file(tracker.download("model") / "model.safetensors")
    theirs = load_file(tmp_path / "model" / "model.safetensors")
    assert same_weights(ours, theirs)
    assert tracker.status() == "FINISHED"
    logged = [(step, value) for _, value, _, step in tracker.points_of("train/loss")]
    assert logged == [tuple(pair) for pair in json.loads((tmp_path / "loss.json").read_text())], "each once"
