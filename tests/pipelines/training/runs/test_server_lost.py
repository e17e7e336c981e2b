"""Training while the MLflow server is down; the log is sent when it is back."""

from collections.abc import Callable, Iterator

import pytest
import torch
from mlflow_server import Server
from safetensors.torch import load_file
from toy import FolderReport, toy_run, trainer_of

from polypool.infra.errors import InputError
from polypool.infra.tracking import Sender, Tracker, tracking_uri
from polypool.pipelines.training import train as training
from polypool.pipelines.training.checkpoint import Snapshot
from polypool.pipelines.training.record import tags


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
