import math
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy import FolderReport, Toy, same_weights, toy_run, trainer_of
from workers import run_workers

from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError
from polypool.pipelines.training.checkpoint import Snapshot, is_whole, load_weights, save_weights
from polypool.pipelines.training.loop import trainer as loop
from polypool.pipelines.training.loop.optim import lr_scale
from polypool.pipelines.training.record import GPU_LOAD, GPU_MEMORY
from polypool.tasks.adapter import Evaluation
from polypool.tasks.run import Optim, Run
from polypool.tasks.scoring.records import metrics_from


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of 15 steps."""
    trained = trainer_of(toy_run(), tmp_path_factory.mktemp("whole"))
    trained.train()
    return trained


def test_training_keeps_best_epoch_and_tests_once(whole):
    log, folder = whole.log, whole.log.folder
    dev = [value for _, value in log.history("dev/score")]
    assert len(dev) == 3
    assert dev[-1] > dev[0]
    assert max(dev) == whole.progress.best == log.rows[-3][1]["dev/best_score"]
    costs = log.rows[-2][1]
    assert costs["weights/aggregators"] == 2 * 12_704  # gpo, on both sides
    assert costs["weights/all"] == sum(p.numel() for p in whole.model.parameters())
    assert costs["time/step_ms"] > 0
    assert costs["cost/step"] == pytest.approx(whole.progress.cost / 15)
    assert costs["cost/step_ms"] == pytest.approx(1e3 * whole.progress.cost_seconds / 15)
    assert costs["cost/step"] > 0
    assert log.rows[-1][1]["test/score"] == log.rows[-1][1]["whole/score"]
    assert [name for _, row in log.rows for name in row if name.startswith("whole/")] == ["whole/score"]
    assert log.rows[-1][1]["whole/score"] == pytest.approx(max(dev))
    files = {path.name for part in ("model", "per_query") for path in (folder / part).iterdir()}
    assert files == {
        "model.safetensors",
        "run.json",
        "assets.json",
        "digests.json",
        "whole.npz",
        "whole.json",
    }
    read = metrics_from(log.tagged, "whole", run="this one", read=lambda name: (folder / name).read_bytes())
    assert [metric.name for metric in read] == ["score"]
    # every second step, and the last of each epoch of 5 steps
    assert [step for step, _ in log.history("train/loss")] == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    assert whole.step == 15
    assert {"train/gradient_norm", "train/lr", "train/samples_per_second"} <= log.rows[0][1].keys()


def test_killed_run_resumes_to_same_weights(whole, tmp_path):
    run, report = toy_run(checkpoint_every=2), FolderReport(fail_after=3)
    killed = trainer_of(run, tmp_path, report)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    torch.manual_seed(123)
    again = trainer_of(run, tmp_path)
    again.resume(report.last)
    assert 0 < again.progress.samples < 3 * 40
    assert again.train()
    assert same_weights(again.model.state_dict(), whole.model.state_dict())
    logged = [each.log.history("train/loss") for each in (killed, again, whole)]
    assert logged[0] + logged[1] == logged[2], "every step must be logged once"
    assert again.progress.best == whole.progress.best
    best = [load_file(folder / "model" / "model.safetensors") for folder in (whole.log.folder, tmp_path)]
    assert same_weights(*best)


def test_run_stopped_mid_epoch_resumes_to_same_weights(whole, tmp_path):
    report = FolderReport()
    part = trainer_of(toy_run(), tmp_path, report)
    part.stopping = lambda: part.step == 7
    assert not part.train()
    assert (part.step, report.count) == (7, 2)
    assert not any("whole/score" in row for _, row in part.log.rows), (
        "a stopped run must not score the test split"
    )
    again = trainer_of(toy_run(), tmp_path, report)
    again.resume(report.last)
    assert again.step == part.log.history("train/loss")[-1][0] == 7
    again.train()
    assert same_weights(again.model.state_dict(), whole.model.state_dict())


class CountedMeter:
    seconds, busy = 2.0, 0.5
    step = nullcontext

    def __init__(self, device: torch.device) -> None:
        pass

    def lap(self) -> float:
        return 1.0


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(loop, "CostMeter", CountedMeter)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 120))


def test_costs_add_up_over_epochs_and_restarts(tmp_path, counted):
    report = FolderReport()
    part = trainer_of(toy_run(checkpoint_every=2), tmp_path, report)  # laps of 2, 2 and 1 steps per epoch
    part.stopping = lambda: part.step == 8
    part.train()
    assert part.progress.cost == 3 + 2
    again = trainer_of(toy_run(), tmp_path, report)
    again.resume(report.last)
    again.train()
    assert (again.progress.cost, again.progress.cost_seconds, again.progress.cost_steps) == (7.0, 14.0, 15)
    assert again.log.history("cost/step") == [(15, pytest.approx(7 / 15))]
    assert again.log.history("cost/step_ms") == [(15, pytest.approx(14e3 / 15))]
    assert [again.log.history(name) for name in (GPU_LOAD, GPU_MEMORY)] == [[(15, 0.25)]] * 2


def stopped_worker(folder: str) -> None:
    trained = trainer_of(toy_run(workers=world()), Path(folder) / f"log{rank()}")
    trained.stopping = lambda: rank() == 1 and trained.step >= 3
    trained.train()
    (Path(folder) / str(rank())).write_text(str(trained.step))


def test_stop_request_to_one_worker_stops_all(tmp_path):
    run_workers(stopped_worker, str(tmp_path))
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["4", "4"], (
        "workers must stop at a logged step"
    )


LAST = 7
"""Number of steps of the run below: 42 samples in batches of 6, for 1, 2 or 3 workers."""


def stage(folder: str, until: int) -> None:
    """Resume from the checkpoint in a folder, if any, train until a step, and save another."""
    torch.set_default_dtype(torch.float64)
    checkpoint, place = Path(folder, "checkpoint"), Path(folder, str(rank()))

    def report(metrics: dict[str, Any], made: Snapshot | None) -> None:
        if made is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)
            checkpoint.mkdir(parents=True)
            made.write(checkpoint)

    run = toy_run(workers=3, min_workers=1, optim={"epochs": 1, "batch": 6, "drop_last": False})
    trained = trainer_of(run, place, report)
    if checkpoint.exists():
        trained.resume(checkpoint)
    trained.stopping = lambda: trained.step == until
    trained.train()
    assert trained.step == until
    if rank() == 0:
        torch.save(trained.model.state_dict(), Path(folder, "weights.pt"))


@pytest.mark.parametrize(
    "stages", [[(1, 2), (3, 4), (2, LAST)], pytest.param([(3, 2), (1, 4), (3, LAST)], marks=pytest.mark.slow)]
)
def test_changing_worker_counts_match_one_worker(tmp_path, stages):
    run_workers(stage, str(tmp_path / "one"), LAST, world=1)
    for workers, until in stages:
        run_workers(stage, str(tmp_path / "many"), until, world=workers)
    one, many = (torch.load(tmp_path / of / "weights.pt", weights_only=True) for of in ("one", "many"))
    # batch normalisation cancels this bias: its gradient is rounding error, which Adam scales up
    for name in one.keys() - {"visual.encoder.down.bias", "visual.encoder.norm.running_mean"}:
        torch.testing.assert_close(many[name], one[name], rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("settings", "epoch_steps", "expected"),
    [
        ({"milestones": (1, 3), "decay": 0.1, "schedule": "step"}, 2, [1, 1, *[0.1] * 4, 0.01, 0.01]),
        ({"schedule": "cosine", "warmup_steps": 2, "epochs": 6}, 2, {0: 0.5, 6: 0.5, 12: 0}),
        ({"warmup_steps": 4, "warmup_start": 1.0}, 5, [*[1] * 5, 0.25, 0.5, 0.75, *[1] * 4]),
        ({"warmup_start": 1.0}, 5, {5: 1}),
        ({"warmup_steps": 2, "warmup_start": 0.5}, 4, [1, 1, 0.5, 1]),  # as after a `freeze` of half an epoch
        ({"epochs": 2, "schedule": "cosine", "warmup_steps": 2, "warmup_start": 1.0}, 5, {5: 0.5 * 0.5}),
        ({"warmup_steps": 4}, 5, [0.25, 0.5, 0.75, 1]),  # a fifth of 20 steps
        ({"warmup_steps": 5}, 5, [0.5, 1]),  # above a fifth: cut to a tenth
        ({"warmup_steps": 500}, 1, [1]),
    ],
    ids=[
        *("steps", "cosine", "a later warm-up", "no warm-up", "from half an epoch", "cosine, later"),
        *("a fifth", "cut", "no step is a tenth"),
    ],
)
def test_learning_rates_follow_their_schedules(settings, epoch_steps, expected):
    optim = Optim(**{"epochs": 4, "schedule": "constant"} | settings)
    for step, scale in expected.items() if isinstance(expected, dict) else enumerate(expected):
        found = lr_scale(optim, step=step, epoch_steps=epoch_steps)
        assert found == pytest.approx(scale, rel=1e-9, abs=1e-9), step


@pytest.mark.parametrize("log_every", [2, 100], ids=["where it is logged", "at the end of the epoch"])
def test_non_finite_loss_stops_run(tmp_path, log_every):
    trained = trainer_of(toy_run(optim={"clip": 0.0}, log_every=log_every), tmp_path)
    torch.nn.init.constant_(trained.model.visual.encoder.fc.weight, float("nan"))
    with pytest.raises(InputError, match=f"nan before step {min(log_every, 5)}: lower the learning rate"):
        trained.train()
    assert trained.log.history("dev/score") == []


class Scripted(Toy):
    """Returns scripted scores on `val`, one per evaluation."""

    def __init__(self, run: Run, scores: Iterable[float]) -> None:
        super().__init__(run)
        self.scores = iter(scores)

    def evaluate(self, model: torch.nn.Module, split: str, protocol: str) -> Evaluation:
        found = super().evaluate(model, split, protocol)
        return replace(found, metrics={"score": next(self.scores)}) if split == "val" else found


def test_non_finite_score_is_never_best(tmp_path, capsys):
    report, run = FolderReport(fail_after=1), toy_run()
    first = trainer_of(run, tmp_path, report, adapter=Scripted(run, [math.nan]))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert capsys.readouterr().err == "warning: score on val is nan after epoch 1\n"
    assert is_whole(report.last)
    again = trainer_of(run, tmp_path, report, adapter=Scripted(run, [0.5, math.inf]))
    again.resume(report.last)
    assert again.train()
    assert (again.progress.best, again.progress.best_epoch) == (0.5, 2)
    assert "dev/best_score" not in first.log.rows[-1][1]
    none = trainer_of(run, tmp_path / "none", adapter=Scripted(run, [math.nan] * 3))
    with pytest.raises(InputError, match=r"score on val was never a finite number.*--optim\.lr"):
        none.train()


@pytest.mark.parametrize(("keep", "kept"), [("best", (0.9, 1)), ("last", (0.5, 3))])
def test_best_or_last_epoch_is_kept(tmp_path, keep, kept, capsys):
    run = toy_run(optim={"keep": keep, "warmup_steps": 20})
    trained = trainer_of(run, tmp_path, adapter=Scripted(run, [0.9, 0.7, 0.5]))
    trained.train()
    note = (
        "note: the warm-up is cut from 20 steps (--optim.warmup-steps) to 1, a tenth of the training's 15\n"
    )
    assert capsys.readouterr().err == note
    assert (trained.progress.best, trained.progress.best_epoch) == kept
    saved = load_file(trained.log.folder / "model/model.safetensors")
    same = all(torch.equal(saved[name], x) for name, x in trained.model.state_dict().items() if name in saved)
    assert same, "the kept weights must be scored"


def test_mismatched_weights_are_refused_with_names(tmp_path):
    save_weights(torch.nn.Linear(2, 3), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"missing 0.bias, 0.weight; unexpected bias, weight;"):
        load_weights(torch.nn.Sequential(torch.nn.Linear(2, 3)), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"weight \(3, 2\) for \(4, 2\)"):
        load_weights(torch.nn.Linear(2, 4), tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match="cannot read"):
        load_weights(torch.nn.Linear(2, 4), tmp_path / "w.safetensors")
