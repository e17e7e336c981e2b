"""Training while the MLflow server is down; the log is sent when it is back."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import FolderReport, toy_run, trainer_of

from polypool.infra.errors import InputError
from polypool.infra.ray import free_ports
from polypool.infra.tracking import Sender, Tracker, tracking_uri
from polypool.pipelines.training import train as training
from polypool.pipelines.training.checkpoint import Snapshot
from polypool.pipelines.training.record import tags

APP = """
import sys
from werkzeug.serving import make_server
from mlflow.server import app
make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True).serve_forever()
"""


class Server:
    """A real MLflow server on the loopback address, not started yet; a folder holds database, artifacts and log."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self.port}"
        self.env = {
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/server.db",
            "_MLFLOW_SERVER_REGISTRY_STORE": f"sqlite:///{folder}/server.db",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        }
        self._log = folder / "server.log"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", APP, str(self.port)], env=os.environ | self.env, stdout=log, stderr=log
            )
        limit = time.monotonic() + 120
        ask = f"{self.uri}/api/2.0/mlflow/experiments/search?max_results=1"  # creates the database
        while True:
            try:
                urllib.request.urlopen(ask, timeout=120).read()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(self._log.read_text()[-2000:]) from None
                time.sleep(0.1)

    def kill(self) -> None:
        """Send SIGKILL to the server, if it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start()
    yield made
    made.kill()


class Losing(FolderReport):
    """Stops the server after the first epoch."""

    def __init__(self, lose: Callable[[], None]) -> None:
        super().__init__()
        self.lose = lose

    def __call__(self, metrics: dict[str, float], snapshot: Snapshot | None) -> None:
        super().__call__(metrics, snapshot)
        if self.count == 1:
            self.lose()


@pytest.mark.slow
def test_training_survives_server_outage_and_log_is_sent_later(server, tmp_path):
    run = toy_run(figures=False)
    tracker = Tracker.start("e", uri=server.uri, home=tmp_path, name="n", tags={}, params={})

    log, report = Sender(tmp_path / "log", lambda: tracker), Losing(server.kill)
    loop = trainer_of(run, tmp_path, report, log=log)
    loop.train()
    log.close()
    assert report.count == run.optim.epochs
    assert log.unsent
    assert "Connection refused" in log.why

    server.start()
    later = Sender(tmp_path / "log", lambda: tracker)
    later.end("FINISHED")
    later.close()
    assert (later.unsent, later.refused) == (0, [])
    assert tracker.status() == "FINISHED"
    steps = loop.step
    ends = {*range(run.log_every, steps + 1, run.log_every), steps // 3, 2 * steps // 3, steps}
    assert [step for step, _ in tracker.history("train/loss")] == sorted(ends)
    assert [step for step, _ in tracker.history("dev/score")] == [steps // 3, 2 * steps // 3, steps]
    best = load_file(tracker.download("model") / "model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in loop.model.state_dict().items())
    assert tracker.download("per_query/whole.npz").exists()


def test_unsent_final_status_is_reported_and_sent_by_resume(home, monkeypatch, capsys):
    run = toy_run()
    uri = tracking_uri(home)
    tracker = Tracker.start("e", uri=uri, home=home, name="n", tags=tags(run), params={})
    folder = home / "runs" / tracker.run_id / "log"

    def nobody(*_: object, **__: object) -> None:
        raise InputError("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "finish", nobody)
        training.send(tracker, "KILLED")
        assert capsys.readouterr().err == (
            f"note: 1 entries of run {tracker.run_id} are not in MLflow yet (nobody answers): {folder}/metrics.jsonl "
            f"keeps them, and `polypool train resume {tracker.run_id}` sends them\n"
        )
        training.send(tracker, "FINISHED")
        assert "2 entries" in capsys.readouterr().err
    assert tracker.status() == "RUNNING"
    assert training.resume(tracker.run_id) == tracker.run_id, "a finished run must not be trained again"
    assert tracker.status() == "FINISHED"
    assert not folder.exists()
    assert capsys.readouterr().err == ""
