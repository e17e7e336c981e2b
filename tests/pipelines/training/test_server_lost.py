"""Training on while MLflow's server is gone, and what it gets when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mlflow_server import Server
from safetensors.torch import load_file
from toy import FolderReport, SilentBar, Toy, toy_run

from infra.tracking import Outbox, Tracker
from pipelines.training.loop import Trainer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start()
    yield made
    made.kill()


class Killing(FolderReport):
    """Ends the server after the first epoch."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def __call__(self, metrics: dict[str, float], folder: Path | None) -> None:
        super().__call__(metrics, folder)
        if self.count == 1:
            self.server.kill()


def test_training_goes_on_without_the_server_which_gets_all_when_it_is_back(
    server: Server, tmp_path: Path
) -> None:
    run = toy_run(figures=False)
    tracker = Tracker.start("e", uri=server.uri, home=tmp_path, name="n", tags={}, params={})

    def outbox() -> Outbox:
        attach = lambda: Tracker.attach(server.uri, tracker.run_id, running=False)  # noqa: E731
        return Outbox(tmp_path / "outbox", attach)

    log, report = outbox(), Killing(server)
    cpu = torch.device("cpu")
    trainer = Trainer(run, Toy(run), log=log, report=report, device=cpu, bar=SilentBar)
    trainer.train()
    log.close()
    assert report.count == run.optim.epochs
    assert log.unsent
    assert "Connection refused" in log.why

    server.start()
    later = outbox()
    later.end("FINISHED")
    later.close()
    assert (later.unsent, later.refused) == (0, 0)
    assert tracker.status() == "FINISHED"
    steps = trainer.step
    assert [step for step, _ in tracker.history("train/loss")] == list(range(2, steps + 1, run.log_every))
    assert [step for step, _ in tracker.history("dev/score")] == [steps // 3, 2 * steps // 3, steps]
    best = load_file(tracker.download("model") / "model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in trainer.model.state_dict().items())
    assert tracker.download("per_query/whole.npz").exists()
