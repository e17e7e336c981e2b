from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import FolderReport, Toy, same_weights, toy_run, trainer
from workers import run_workers

from polypool.infra.batches import Order
from polypool.infra.compute.dist import rank, world
from polypool.infra.errors import InputError
from polypool.pipelines.training import loop
from polypool.pipelines.training.checkpoints.format import load_weights, save_weights
from polypool.pipelines.training.optim import lr_scale, make_optimizer
from polypool.tasks.run import Optim
from polypool.tasks.scoring.records import metrics_from


def test_training_learns_keeps_the_best_and_tests_it_once(tmp_path):
    trained = trainer(toy_run(), tmp_path)
    trained.train()
    log = trained.log
    dev = [row["dev/score"] for _, row in log.rows if "dev/score" in row]
    assert len(dev) == 3
    assert dev[-1] > dev[0]
    assert max(dev) == trained.progress.best == log.rows[-3][1]["dev/best_score"]
    costs = log.rows[-2][1]
    assert costs["weights/aggregators"] == 2 * 12_704  # gpo, on both sides
    assert costs["weights/all"] == sum(p.numel() for p in trained.model.parameters())
    assert costs["time/step_ms"] > 0
    assert costs["cost/step"] == pytest.approx(trained.progress.cost / 15)
    assert costs["cost/step_ms"] == pytest.approx(1e3 * trained.progress.cost_seconds / 15)
    assert costs["cost/step"] > 0
    assert costs["test/score"] == log.rows[-1][1]["whole/score"]
    assert [name for _, row in log.rows for name in row if name.startswith("whole/")] == ["whole/score"]
    assert log.rows[-1][1]["whole/score"] == pytest.approx(max(dev))
    files = {
        str(path.relative_to(tmp_path))
        for folder in ("model", "per_query")
        for path in (tmp_path / folder).iterdir()
    }
    model = {f"model/{name}" for name in ("model.safetensors", "run.json", "assets.json")}
    assert files == model | {"per_query/whole.npz", "per_query/whole.json"}
    read = metrics_from(log.tagged, "whole", run="this one", read=lambda name: (tmp_path / name).read_bytes())
    assert [metric.name for metric in read] == ["score"]
    losses = [row["train/loss"] for _, row in log.rows if "train/loss" in row]
    assert len(losses) == 7  # 15 steps, every second one
    assert trained.step == 15
    assert {"train/gradient_norm", "train/lr", "train/samples_per_second"} <= log.rows[0][1].keys()


@pytest.mark.parametrize("killed_after", [1, 2, 4])
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, killed_after):
    run = toy_run(checkpoint_every=2)
    whole = trainer(run, tmp_path / "whole")
    whole.train()

    report = FolderReport(fail_after=killed_after)
    with pytest.raises(KeyboardInterrupt):
        trainer(run, tmp_path / "part", report).train()
    torch.manual_seed(123)
    again = trainer(run, tmp_path / "part")
    again.resume(report.last)
    assert 0 < again.progress.samples < 3 * 40
    again.train()

    assert same_weights(again.model.state_dict(), whole.model.state_dict())
    assert again.progress.best == whole.progress.best
    best = [load_file(tmp_path / part / "model" / "model.safetensors") for part in ("whole", "part")]
    assert same_weights(*best)


def test_a_run_that_is_asked_to_stop_leaves_a_checkpoint_and_goes_on_to_the_same_weights(tmp_path):
    run, report = toy_run(), FolderReport()
    whole = trainer(run, tmp_path / "whole")
    whole.train()
    part = trainer(run, tmp_path / "part", report)
    part.stopping = lambda: part.step == 8
    part.train()
    assert (part.step, report.count) == (8, 2)
    assert not any("whole/score" in row for _, row in part.log.rows), "the test split is left for later"
    again = trainer(run, tmp_path / "part", report)
    again.resume(report.last)
    assert again.step == 8
    again.train()
    assert same_weights(again.model.state_dict(), whole.model.state_dict())


class CountedMeter:
    """Says of every lap that it cost one."""

    seconds = 2.0

    def __init__(self, device: torch.device) -> None:
        pass

    def lap(self) -> float:
        return 1.0


def test_costs_are_counted_over_epochs_checkpoints_and_restarts(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CostMeter", CountedMeter)
    report = FolderReport()
    part = trainer(
        toy_run(checkpoint_every=2), tmp_path / "part", report
    )  # 5 steps an epoch: laps of 2, 2 and 1
    part.stopping = lambda: part.step == 8
    part.train()
    assert part.progress.cost == 3 + 2
    again = trainer(toy_run(), tmp_path / "part", report)
    again.resume(report.last)
    again.train()
    assert (again.progress.cost, again.progress.cost_seconds, again.progress.cost_steps) == (7.0, 14.0, 15)
    logged = next(row for _, row in again.log.rows if "cost/step" in row)
    assert (logged["cost/step"], logged["cost/step_ms"]) == (pytest.approx(7 / 15), pytest.approx(14e3 / 15))


def test_costs_of_a_run_that_an_earlier_version_began_are_of_the_steps_since(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CostMeter", CountedMeter)
    trained = trainer(toy_run(), tmp_path)
    trained.progress.samples, trained.progress.seconds = 2 * 40, 5.0
    trained.train()
    logged = next(row for _, row in trained.log.rows if "cost/step" in row)
    assert logged["cost/step"] == pytest.approx(1 / 5)


def stopped_worker(folder: str) -> None:
    trained = trainer(toy_run(workers=world()), Path(folder) / f"log{rank()}")
    trained.stopping = lambda: rank() == 1 and trained.step >= 3
    trained.train()
    (Path(folder) / str(rank())).write_text(str(trained.step))


def test_workers_stop_together_where_one_of_them_is_asked_to(tmp_path):
    run_workers(stopped_worker, str(tmp_path))
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["4", "4"], "where they log"


MEASURED = {"train/samples_per_second", "time/train_seconds", "time/step_ms", "cost/step", "cost/step_ms"}


def worker(folder: str, drop_last: bool, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    run = toy_run(workers=world(), optim={"drop_last": drop_last})
    trained = trainer(run, Path(folder) / f"log{world()}-{rank()}")
    trained.train()
    if rank() == 0:
        torch.save(
            {"weights": trained.model.state_dict(), "rows": trained.log.rows}, f"{folder}/{world()}.pt"
        )


@pytest.mark.parametrize(
    ("drop_last", "dtype", "tolerance"),
    [(True, torch.float64, 1e-9), (False, torch.float64, 1e-9), (True, torch.float32, 1e-3)],
)
def test_two_workers_train_like_one(tmp_path, drop_last, dtype, tolerance):
    """42 samples: the last batch has two, one for each worker."""
    for workers in (1, 2):
        run_workers(worker, str(tmp_path), drop_last, dtype, world=workers)
    one, two = (torch.load(tmp_path / f"{workers}.pt", weights_only=True) for workers in (1, 2))
    for (step, ours), (_, theirs) in zip(one["rows"], two["rows"], strict=True):
        for name in ours.keys() - MEASURED:
            assert theirs[name] == pytest.approx(ours[name], rel=100 * tolerance, abs=tolerance), (step, name)
    # batch normalisation takes this bias out again: its gradient is nothing but rounding, which Adam scales up
    for name in one["weights"].keys() - {"visual.encoder.down.bias", "visual.encoder.norm.running_mean"}:
        expected = one["weights"][name]
        torch.testing.assert_close(
            two["weights"][name], expected, rtol=10 * tolerance, atol=tolerance, msg=name
        )


def test_the_order_depends_on_seed_and_epoch_alone():
    order = Order(size=10, batch=4, unit=4, seed=1)
    assert (order.epoch_samples, order.epoch_steps) == (8, 2)
    whole = list(order.batches(0))
    assert [b.tolist() for b in order.batches(4)] == [whole[1].tolist()]
    assert [b.tolist() for b in order.batches(8)] != [b.tolist() for b in whole]
    assert len({*whole[0], *whole[1]}) == 8
    rest = Order(size=10, batch=4, unit=1, seed=1)
    assert [len(b) for b in rest.batches(0)] == [4, 4, 2]


def test_a_split_smaller_than_a_batch_is_refused():
    with pytest.raises(InputError, match="smaller batch"):
        Order(size=3, batch=4, unit=4, seed=0)


def test_a_batch_that_workers_cannot_share_is_refused():
    with pytest.raises(InputError, match="shared evenly"):
        toy_run(workers=3)


def test_learning_rates_follow_their_schedules():
    step = Optim(epochs=4, milestones=(1, 3), decay=0.1, schedule="step")
    assert [round(lr_scale(step, step=s, epoch_steps=2), 6) for s in (0, 1, 2, 5, 6, 7)] == [
        1,
        1,
        0.1,
        0.1,
        0.01,
        0.01,
    ]
    cosine = Optim(epochs=4, schedule="cosine", warmup_steps=2)
    scales = [lr_scale(cosine, step=s, epoch_steps=2) for s in range(9)]
    assert scales[0] == pytest.approx(0.5)
    assert scales[4] == pytest.approx(0.5)
    assert scales[8] == pytest.approx(0)


def test_a_warm_up_may_begin_later_and_the_rate_is_whole_before():
    optim = Optim(epochs=4, schedule="constant", warmup_steps=4, warmup_start=1.0)
    scales = [lr_scale(optim, step=s, epoch_steps=5) for s in range(12)]
    assert scales == [1, 1, 1, 1, 1, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert lr_scale(Optim(warmup_start=1.0, schedule="constant"), step=5, epoch_steps=5) == 1
    fraction = Optim(
        schedule="constant", warmup_steps=2, warmup_start=0.5
    )  # where `freeze` of half an epoch ends
    assert [lr_scale(fraction, step=s, epoch_steps=4) for s in range(4)] == [1, 1, 0.5, 1]
    cosine = Optim(epochs=2, schedule="cosine", warmup_steps=2, warmup_start=1.0)
    assert lr_scale(cosine, step=2, epoch_steps=2) == pytest.approx(0.5 * 0.5)


def test_amsgrad_keeps_the_largest_second_moment():
    ours, theirs = (torch.nn.Linear(3, 1) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizer = make_optimizer(ours, Optim(lr=0.1, weight_decay=0.0, optimiser="adamw(amsgrad=True)"))
    reference = torch.optim.Adam(theirs.parameters(), lr=0.1, amsgrad=True)
    for size in (9.0, 0.1, 0.1, 0.1):
        for model, method in ((ours, optimizer), (theirs, reference)):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, size)
            method.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert torch.equal(optimizer.state[ours.weight]["max_exp_avg_sq"] > 0, torch.ones(1, 3, dtype=torch.bool))


def test_the_longest_prefix_decides_the_rate_and_zero_freezes():
    model = Toy(toy_run()).model()
    factors = (("visual.encoder", 0.1), ("visual.encoder.fc", 0.5), ("text.encoder.embed", 0.0))
    optimizer = make_optimizer(model, Optim(lr_factors=factors))
    rate = {id(p): group["factor"] for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    assert rate[id(named["visual.encoder.fc.weight"])] == 0.5
    assert rate[id(named["visual.encoder.up.bias"])] == 0.1
    assert rate[id(named["text.encoder.rnn.weight_hh_l0"])] == 1.0
    assert not named["text.encoder.embed.weight"].requires_grad
    with pytest.raises(InputError, match=r"Did you mean 'text\.encoder\.rnn'"):
        make_optimizer(model, Optim(lr_factors=(("text.encoder.rmm", 0.1),)))


def test_the_gradient_is_clipped_as_a_whole(tmp_path):
    trained = trainer(toy_run(optim={"clip": 1e-3}), tmp_path)
    data = trained.data.batch(trained.order.batches(0).__next__(), seed=0, epoch=0)
    norm = trained.train_step(data)["gradient_norm"]
    clipped = torch.stack([p.grad.norm() for p in trained.model.parameters()]).norm()
    assert norm > 1e-3
    assert clipped == pytest.approx(1e-3, rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    trained = trainer(toy_run(optim={"clip": 0.0}), tmp_path)
    torch.nn.init.constant_(trained.model.visual.encoder.fc.weight, float("nan"))
    with pytest.raises(InputError, match="lower the learning rate"):
        trained.train()


def test_weights_of_another_architecture_are_refused_by_name(tmp_path):
    save_weights(torch.nn.Linear(2, 3), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"missing 0.bias, 0.weight; unexpected bias, weight;"):
        load_weights(torch.nn.Sequential(torch.nn.Linear(2, 3)), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"weight \(3, 2\) for \(4, 2\)"):
        load_weights(torch.nn.Linear(2, 4), tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match="cannot read"):
        load_weights(torch.nn.Linear(2, 4), tmp_path / "w.safetensors")
