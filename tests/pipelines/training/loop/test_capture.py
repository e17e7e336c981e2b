"""Captured steps, with a tape of operations instead of a CUDA graph; replays run no Python code."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_paths import META, gpu_paths_on_cpu
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from toy import toy_run, trainer_of

from polypool.infra.batches import arriving, in_few_widths
from polypool.pipelines.training.loop import trainer as loop
from polypool.pipelines.training.loop.capture import EAGER, CapturedSteps, put_rates, why_not
from polypool.pipelines.training.loop.optim import make_optimizer
from polypool.tasks.run import Optim


class Tape(TorchDispatchMode):
    """Records the operations of a function for replay."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.inplace_view not in func.tags:  # in-place views change a shape for good: no replay
            made = [x.detach() for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.calls.append((func, args, kwargs or {}, made))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            again = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for old, new in zip(made, again, strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class Names(TorchDispatchMode):
    """Collects the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(str(func))
        return func(*args, **(kwargs or {}))


class Recorder:
    """Records like `capture.Recorder`; the first replay is the recording itself."""

    def __init__(self) -> None:
        self.replays, self.records = 0, 0

    def __call__(
        self, function: Callable[[], dict[str, Tensor]]
    ) -> tuple[Callable[[], None], dict[str, Tensor]]:
        tape, ran = Tape(), []
        self.records += 1
        with tape:
            terms = function()

        def replay() -> None:
            if ran:
                with _disable_current_modes():
                    tape.replay()
            ran.append(True)
            self.replays += 1

        return replay, terms


RUN = {"aggregator": "mean", "log_every": 1}
OPTIM = {"epochs": 8, "freeze": (("text.encoder.embed", 2.0),), "ema": 0.9}


@pytest.mark.parametrize(
    ("objective", "optim"),
    [
        ("triplet(warmup_epochs=3)", {}),
        ("infonce", {"optimiser": "lion", "lr": 1e-4}),  # rounding may flip a sign, hence a step of lr
    ],
)
def test_captured_steps_match_eager_training(objective, optim, monkeypatch, tmp_path):
    run = toy_run(**RUN, objective=objective, optim=OPTIM | optim)
    plain, captured = (trainer_of(run, tmp_path / name) for name in ("plain", "captured"))
    for trainer in (plain, captured):
        made = trainer.data.batch
        monkeypatch.setattr(trainer.data, "batch", lambda *a, made=made, **k: in_few_widths(made(*a, **k)))
    plain.train()
    recorder = Recorder()
    monkeypatch.setattr(loop, "why_not", lambda *_: "")
    monkeypatch.setattr(loop, "Recorder", lambda: recorder)
    captured._draw_state = torch.zeros((), dtype=torch.int64)
    step, outside = captured.train_step, set[str]()

    def train_step(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        replays, records = recorder.replays, recorder.records
        with Names() as names:
            terms = step(batch)
        if recorder.replays > replays and recorder.records == records:
            outside.update(names.found)
        return terms

    monkeypatch.setattr(captured, "train_step", train_step)
    with gpu_paths_on_cpu():
        captured.train()
    assert recorder.replays > 10
    assert outside == {"aten.fill_.Scalar", "aten._foreach_copy_.default"}, (
        "only learning rates and the batch may be copied"
    )
    for name in ("train/loss", "train/gradient_norm", "train/lr"):
        ours, theirs = ([value for _, value in each.log.history(name)] for each in (captured, plain))
        assert ours == pytest.approx(theirs, rel=1e-3), name
    ours, theirs = (trainer.model.state_dict() for trainer in (captured, plain))
    for weights in (ours, theirs):
        for name in ("down.bias", "norm.running_mean"):  # a bias before batch normalisation has no gradient
            del weights[f"visual.encoder.{name}"]
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    averages = (
        {name: x for name, x in trainer.average.state().items() if name in ours}
        for trainer in (captured, plain)
    )
    torch.testing.assert_close(*averages, rtol=1e-3, atol=1e-3)


def test_capture_is_reused_while_epoch_comparisons_agree():
    calls: list[float] = []

    def step(batch: dict[str, Tensor], epoch: Any) -> dict[str, Tensor]:
        calls.append(getattr(epoch, "value", epoch))
        return {"loss": batch["x"].sum() * (2.0 if epoch < 1 else 3.0)}

    steps = CapturedSteps(step, Recorder())
    found = [float(steps({"x": torch.full((2,), float(n))}, n / 8)["loss"]) for n in range(16)]
    assert found == [(2.0 if n < 8 else 3.0) * 2 * n for n in range(16)]
    assert calls == [0, 1 / 8, 2 / 8, 1], "expected two eager steps, and a capture before and after epoch 1"
    assert float(steps({"x": torch.ones(3)}, 1.5)["loss"]) == 9.0
    assert len(calls) == 5, "a new shape must not be replayed"


@pytest.mark.parametrize(
    "use",
    [
        lambda epoch, x: x * epoch,
        lambda epoch, x: x * math.exp(epoch),
        lambda epoch, x: x + torch.tensor(epoch),
        lambda epoch, x: x + min(1.0, epoch / 2),
    ],
)
def test_loss_computed_from_epoch_is_not_captured(use, capsys):
    steps = CapturedSteps(lambda batch, epoch: {"loss": use(epoch, batch["x"])}, Recorder())
    x = torch.ones(())
    found = [float(steps({"x": x}, n / 3)["loss"]) for n in range(EAGER + 3)]
    assert found == pytest.approx([float(use(n / 3, x)) for n in range(EAGER + 3)])
    assert capsys.readouterr().err.count("note: steps are not captured") == 1


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"capture": "off"}, "--optim.capture is off"),
        ({"chunk": 4}, "--optim.chunk"),
        ({"recompute": True}, "--optim.recompute"),
        ({"optimiser": "lion"}, ""),
        ({"optimiser": "sgd"}, "SGD reads its learning rate"),
        ({"optimiser": "muon"}, "Muon reads"),
    ],
)
def test_reasons_against_capture_are_reported(changed, why):
    optim = Optim(**changed)
    optimizer = make_optimizer(torch.nn.Linear(2, 3), optim)
    assert why in why_not(optim, optimizer, torch.device("cuda"))
    assert bool(why) == bool(why_not(optim, optimizer, torch.device("cuda")))
    assert why_not(optim, optimizer, torch.device("cpu"))
    put_rates(optimizer, torch.device("cpu"), captured=False)
    assert isinstance(optimizer.param_groups[0]["lr"], float)


@pytest.mark.parametrize(
    ("size", "width"), [(1, 1), (15, 15), (17, 18), (33, 36), (36, 36), (37, 40), (65, 72)]
)
def test_batches_are_padded_to_few_widths(size, width):
    x_BND, token_BL = torch.randn(2, size, 3), torch.ones(2, size, dtype=torch.int64)
    pixels, mask_BN = torch.randn(2, 3, 4, 4), torch.ones(2, size, dtype=torch.bool)
    batch = {"a": x_BND, "a_mask": mask_BN, "b": token_BL, "b_mask": mask_BN, "c": pixels, "c_mask": mask_BN}
    padded = in_few_widths(batch)
    assert padded["a"].shape == (2, width, 3)
    assert torch.equal(padded["a"][:, :size], x_BND)
    assert not padded["a"][:, size:].any()
    assert torch.equal(padded["b_mask"], torch.arange(width).expand(2, -1) < size)
    assert padded["b"].shape == (2, width)
    assert torch.equal(padded["c"], pixels)


def test_evaluation_batches_arrive_in_order():
    batches = [(number, {"x": torch.zeros(number)}) for number in range(7)]
    found = [*arriving(iter(batches), META)]
    assert [(number, len(batch["x"]), batch["x"].device) for number, batch in found] == [
        (number, number, META) for number in range(7)
    ]
