"""Optimisers: formulas of the papers, parameter groups, and checks such as bit-exact resume."""

import copy
import os
import sys
from types import ModuleType

import pytest
import torch
from places import PATHS
from programs import begin, end
from torch import Tensor, nn
from toy import Toy, toy_run

from polypool.infra.errors import InputError
from polypool.infra.registry import OPTIMISERS
from polypool.pipelines.training import optimisers
from polypool.pipelines.training.loop.optim import make_optimizer, ready_gradients, set_lr
from polypool.tasks.run import Optim
from polypool.testing import outcomes

BUILT_IN = OPTIMISERS.names()


class Parts(nn.Module):
    """An embedding, a wide and a tall matrix, a convolution and biases, in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.wide, self.tall = nn.Embedding(5, 4), nn.Linear(8, 3), nn.Linear(3, 8)
        self.kernel = nn.Conv1d(2, 3, 2)
        self.double()


def gradients(model: nn.Module, *, steps: int) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    named = dict(model.named_parameters())
    return [
        {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in named.items()}
        for _ in range(steps)
    ]


LR, DECAY = 0.1, 0.3


def trained(optimiser: str, steps: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    model = Parts()
    optimizer = make_optimizer(model, Optim(lr=LR, weight_decay=DECAY, optimiser=optimiser))
    for step in steps:
        for name, parameter in model.named_parameters():
            parameter.grad = step[name].clone()
        optimizer.step()
    return model.state_dict()


def lion(x, gradients, *, beta1, beta2):
    """Algorithm 2 of the paper, element by element."""
    x, m = x.clone().flatten(), [0.0] * x.numel()
    for gradient in gradients:
        for i, g in enumerate(gradient.flatten().tolist()):
            c = beta1 * m[i] + (1 - beta1) * g
            x[i] -= LR * ((c > 0) - (c < 0) + DECAY * x[i])
            m[i] = beta2 * m[i] + (1 - beta2) * g
    return x.view_as(gradients[0])


def muon(x, gradients, *, momentum, rate):
    """Apply the Newton-Schulz polynomial to singular values, in float64."""
    v, (a, b) = torch.zeros_like(x), x.shape
    factor = 0.2 * max(a, b) ** 0.5 if rate == "match_rms_adamw" else max(1.0, a / b) ** 0.5
    for gradient in gradients:
        v = momentum * v + (1 - momentum) * gradient
        left, values, right = torch.linalg.svd((1 - momentum) * gradient + momentum * v, full_matrices=False)
        values = values / values.norm()
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        x = x * (1 - LR * DECAY) - LR * factor * left @ torch.diag(values) @ right
    return x


@pytest.mark.parametrize(
    ("spec", "betas"), [("lion", (0.9, 0.99)), ("lion(beta1=0.5, beta2=0.8)", (0.5, 0.8))]
)
def test_lion_matches_formula(spec, betas):
    model = Parts()
    steps = gradients(model, steps=5)
    ours = trained(spec, steps)
    for name, x in model.state_dict().items():
        expected = lion(x, [step[name] for step in steps], beta1=betas[0], beta2=betas[1])
        torch.testing.assert_close(ours[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rate", ["match_rms_adamw", "original"])
def test_muon_orthogonalises_matrices_and_others_use_adamw(rate):
    model = Parts()
    steps = gradients(model, steps=3)
    ours, adamw = trained(f"muon(momentum=0.8, rate={rate})", steps), trained("adamw", steps)
    for name, x in model.state_dict().items():
        if name in ("wide.weight", "tall.weight"):
            expected = muon(x, [step[name] for step in steps], momentum=0.8, rate=rate)
            step = (expected - x).abs().max()
            assert (ours[name] - expected).abs().max() < 0.05 * step, "must match up to bfloat16 rounding"
            assert (ours[name] - adamw[name]).abs().max() > 0.1 * step
        else:
            assert torch.equal(ours[name], adamw[name]), name


@pytest.mark.parametrize(
    ("name", "params", "fused"),
    [
        ("AdamW", {"amsgrad": False}, True),
        ("AdamW", {"amsgrad": True}, True),
        ("SGD", {"momentum": 0.7, "nesterov": False}, False),
        ("SGD", {"momentum": 0.7, "nesterov": True}, False),
    ],
)
def test_torch_optimisers_are_unchanged(name, params, fused):
    torch.manual_seed(0)
    models = [nn.Linear(30, 40)]
    models.append(copy.deepcopy(models[0]))
    options = {"lr": 1e-2, "weight_decay": 0.1} | params
    optimizers = (
        getattr(optimisers, name)(models[0].parameters(), **options),
        getattr(torch.optim, name)(models[1].parameters(), **options, fused=fused),
    )
    for step in range(6):
        x_BD = torch.rand(7, 30) / (1 + step)  # shrinking gradients
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            model(x_BD).square().sum().backward()
            optimizer.step()
        if step == 2:  # swap the states of the optimisers
            states = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
            for optimizer, state in zip(optimizers, reversed(states), strict=True):
                optimizer.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert models[0].weight.requires_grad
    assert models[0].weight.grad_fn is None


@pytest.mark.parametrize("optimiser", BUILT_IN)
def test_param_groups_apply_lr_freeze_and_global_clip(optimiser):
    model = Toy(toy_run()).model()
    optim = Optim(
        lr=1e-2,
        optimiser=optimiser,
        lr_factors=(("visual", 0.1), ("visual.encoder.up", 0.5), ("text.encoder.embed", 0.0)),
        freeze=(("visual.encoder.fc", 1.0),),
        clip=1e-3,
    )
    optimizer = make_optimizer(model, optim)
    named = {id(p): name for name, p in model.named_parameters()}
    found = {named[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == {*named.values()} - {"text.encoder.embed.weight"}
    for name, group in found.items():
        longest = 0.5 if name.startswith("visual.encoder.up") else 0.1 if name.startswith("visual") else 1.0
        assert group["factor"] == longest
        assert group["frozen_epochs"] == (1.0 if name.startswith("visual.encoder.fc") else 0.0)
    set_lr(optimizer, optim, 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {5e-3, 2.5e-3, 5e-4}
    assert not model.text.encoder.embed.weight.requires_grad

    def step(number: int) -> set[str]:
        first = copy.deepcopy(model.state_dict())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        assert ready_gradients(optimizer, optim, step=number, epoch_steps=1) > 1
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-3)
        optimizer.step()
        return {name for name, p in model.named_parameters() if not torch.equal(first[name], p)}

    assert step(0) == {name for name in found if not name.startswith("visual.encoder.fc")}
    assert step(1) == {*found}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lino", "unknown optimiser 'lino'. Did you mean 'lion'"),
        ("lion(beta=0.9)", "Choices: beta1, beta2"),
        ("lion(beta2=1.0)", "beta2 must be at least 0 and below 1, not 1.0"),
        ("lion(lr=0.1)", "unknown parameter of optimiser 'lion': 'lr'"),
        ("muon(rate=fast)", "rate must be 'match_rms_adamw' or 'original', not 'fast'"),
        ("muon(iterations=0)", "iterations must be from 1 to 99, not 0"),
        ("muon(momentum=1.0)", "momentum must be at least 0 and below 1"),
        ("adamw(amsgrad=1)", "amsgrad must be True or False, not 1"),
        ("adamw(beta1=2.0)", "Invalid beta parameter"),
    ],
)
def test_invalid_optimiser_is_refused_with_one_message(spec, message):
    with pytest.raises(InputError) as error:
        make_optimizer(Parts(), Optim(optimiser=spec))
    assert message in str(error.value)


class Uphill(torch.optim.SGD):
    def __init__(self, params, *, lr, weight_decay):
        super().__init__(params, lr=lr, weight_decay=weight_decay, maximize=True)


class Forgetful(torch.optim.SGD):
    """Counts its steps outside of its state, so that checkpoints lose the count."""

    def __init__(self, params, *, lr, weight_decay):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.data.sub_(group["lr"] / self.count * weight.grad)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Uphill, "a step lowers a loss: at a rate of 0.001, it took the loss from"),
        (Forgetful, "ends with the same weights, bit for bit: after 12 steps, the weights"),
    ],
)
def test_broken_custom_optimiser_fails_named_check(monkeypatch, broken, promise):
    plugin = ModuleType("my_optimisers")
    setattr(plugin, broken.__name__, broken)
    monkeypatch.setitem(sys.modules, "my_optimisers", plugin)
    (failed,) = [o for o in outcomes(f"my_optimisers:{broken.__name__}") if o.passed is False]
    assert promise in f"{failed.what}: {failed.message}"


@pytest.mark.parametrize(
    "name",
    [*BUILT_IN, "muon(rate=original)", "adamw(amsgrad=True)", "sgd(nesterov=True)", "torch.optim:RMSprop"],
)
def test_optimisers_pass_all_checks(name):
    assert [o for o in outcomes(name) if not o.passed] == []


WORKER = """
import sys
from pathlib import Path
import torch
from toy import FolderReport, Toy, toy_run, trainer_of
from polypool.infra.tracking import Log
from polypool.pipelines.training.loop.optim import make_optimizer

run, report, log = toy_run(figures=True, optim={"epochs": 1}), FolderReport(), Log(Path(sys.argv[1]))
for optimiser in sys.argv[2:]:
    model = Toy(run).model()
    optimizer = make_optimizer(model, toy_run(optim={"optimiser": optimiser}).optim)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
trainer_of(run, Path(), report, log=log).train()
trainer_of(run, Path(), log=log).resume(report.last)
print(*sorted(name for name in ("torch._dynamo", "mlflow", "transformers", "ray") if name in sys.modules))
"""


def test_worker_imports_neither_dynamo_nor_mlflow(tmp_path):
    env = {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
    code, said, errors = end(begin("-c", WORKER, str(tmp_path), *OPTIMISERS.names(), env=env))
    assert (code, said) == (0, "\n"), errors
