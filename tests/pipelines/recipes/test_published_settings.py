"""Learning rates, batches and negatives of every recipe, compared with the papers and their code."""

import functools
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from published import FILE, NAMES, RUNS, Setting, recipe, settings
from torch import Tensor, nn

from polypool.infra.batches import Order
from polypool.infra.registry import OBJECTIVES, RECIPES
from polypool.pipelines.recipes.load import Ensemble
from polypool.pipelines.training.loop.optim import lr_scale, make_optimizer, ready_gradients, set_lr
from polypool.tasks.run import Optim, Run

WATCHED, EVERY = 3, 50  # watch every 50th step of 3 epochs; first and last two steps of every epoch


def test_every_recipe_is_listed_once_with_source():
    named = [recipe for recipe, _ in settings()] + [*FILE["ensembles"], *FILE["untrained"], *FILE["joint"]]
    missing, gone = sorted({*NAMES} - {*named}), sorted({*named} - {*NAMES})
    assert not missing, (
        f"add the settings of these recipes and their source to published_settings.toml: {missing}"
    )
    assert not gone, f"published_settings.toml lists unknown recipes: {gone}"
    assert len(named) == len({*named})
    assert all(own["source"] for own in FILE["setting"])


@pytest.mark.parametrize("name", [*FILE["joint"]])
def test_joint_members_keep_settings_of_their_recipes(name):
    joint = RECIPES.get(name)()
    assert [run.recipe for run in joint.members.values()] == FILE["joint"][name]
    for run in joint.members.values():
        alone = RECIPES.get(run.recipe)()
        assert (run.data, run.objective, run.protocol, run.fusion) == (
            *(alone.data, alone.objective, alone.protocol, alone.fusion),
        )
    assert len({run.text for run in joint.members.values()}) == 1


@pytest.mark.parametrize("name", [*FILE["untrained"]])
def test_untrained_recipes_have_zero_epochs(name):
    assert FILE["untrained"][name]
    assert RECIPES.get(name)().optim.epochs == 0


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(RECIPES.get(name)(), Ensemble)])
def test_ensemble_members_match_settings_file(name):
    ensemble: Ensemble = RECIPES.get(name)()
    assert list(ensemble.members) == FILE["ensembles"][name]


def longest(values: Mapping[str, float], name: str, *, default: float) -> float:
    fitting = [beginning for beginning in values if name.startswith(beginning)]
    return values[max(fitting, key=len)] if fitting else default


# -------------------------------------------------------------------------------- learning rates and freezing


def epoch_steps(run: Run, setting: Setting) -> int:
    """Return the steps of an epoch as the training loop counts them."""
    size = FILE["samples"][run.data.dataset][setting["sample"]]
    order = Order(size=size, batch=run.optim.batch, unit=run.epoch_unit, seed=0)
    return order.epoch_steps


def watched(epochs: int, steps: int) -> list[int]:
    ends = {epoch * steps + at for epoch in range(epochs) for at in (0, 1, steps - 2, steps - 1)}
    return sorted(ends | {*range(0, min(WATCHED, epochs) * steps, EVERY)})


def rates(optimizer: torch.optim.Optimizer, optim: Optim, steps: int) -> np.ndarray:
    """Return the learning rate of every group at the watched steps, `(S, G)`."""
    found = []
    for step in watched(optim.epochs, steps):
        set_lr(optimizer, optim, lr_scale(optim, step=step, epoch_steps=steps))
        found.append([group["lr"] for group in optimizer.param_groups])
    return np.array(found)


@functools.cache
def without_gradient(frozen_epochs: float, clip: float, epochs: int, steps: int) -> np.ndarray:
    """Return a mask `(S,)` of the watched steps at which a group is frozen."""
    one, optim = nn.Parameter(torch.zeros(1)), Optim(clip=clip)
    optimizer = torch.optim.AdamW([{"params": [one], "frozen_epochs": frozen_epochs}])
    gradient, found = torch.ones(1), []
    for step in watched(epochs, steps):
        one.grad = gradient
        ready_gradients(optimizer, optim, step=step, epoch_steps=steps)
        found.append(one.grad is None)
    return np.array(found)


def published_scale(setting: Setting, step: int, steps: int) -> float:
    """Return the factor on all learning rates according to published_settings.toml."""
    epoch, warmup, falls = step // steps, setting.get("warmup", {}), setting["falls"]
    scale = 1.0
    if warmup.get("epoch") == epoch:
        scale = (step - epoch * steps + 1) / steps
    if "steps" in warmup:
        whole, asked = setting["epochs"] * steps, warmup["steps"]
        scale = min(1.0, (step + 1) / (asked if 5 * asked <= whole else whole // 10))
    if falls == "cosine":
        return scale * (1 + math.cos(math.pi * step / (setting["epochs"] * steps))) / 2
    return scale * math.prod(falls["by"] for end in falls.get("after", ()) if epoch >= end)


@pytest.mark.parametrize("name", RUNS)
def test_learning_rates_and_freezing_match_papers(name):
    run, setting, (model, _) = recipe(name)
    model.requires_grad_(True)
    optimizer = make_optimizer(model, run.optim)
    names = {parameter: name for name, parameter in model.named_parameters()}
    steps = epoch_steps(run, setting)
    rates_SG = rates(optimizer, run.optim, steps)
    at_S = watched(setting["epochs"], steps)
    scale_S = np.array([published_scale(setting, step, steps) for step in at_S])
    left = set(names.values())
    for group, rate_S in zip(optimizer.param_groups, rates_SG.T, strict=True):
        frozen_S = without_gradient(group["frozen_epochs"], run.optim.clip, run.optim.epochs, steps)
        for parameter in group["params"]:
            own = names[parameter]
            left.remove(own)
            base = longest(setting["rates"], own, default=math.nan)
            np.testing.assert_allclose(rate_S, base * scale_S, rtol=1e-12, err_msg=own)
            until = longest(setting.get("frozen", {}), own, default=0) * steps
            assert (frozen_S == (np.array(at_S) < until)).all(), own
    assert left == {own for own in names.values() if longest(setting["rates"], own, default=math.nan) == 0}
    assert not any(p.requires_grad for p, own in names.items() if own in left)


def test_batch_epochs_and_optimiser_match_papers():
    for name in RUNS:
        run, setting, (model, _) = recipe(name)
        assert (run.optim.batch, run.optim.epochs) == (setting["batch"], setting["epochs"]), name
        assert run.optim.drop_last == (setting["last"] == "dropped"), name
        if setting["sample"] != "question":
            assert run.data.sample == setting["sample"], name
        model.requires_grad_(True)
        optimizer = make_optimizer(model, run.optim)
        assert isinstance(optimizer, torch.optim.AdamW)  # equals Adam without weight decay
        assert setting["optimizer"] in ("AdamW", "Adam", "AMSGrad")
        assert setting["optimizer"] == "AdamW" or setting["decay"] == 0
        for group in optimizer.param_groups:
            assert group["weight_decay"] == setting["decay"], name
            assert group["amsgrad"] == (setting["optimizer"] == "AMSGrad"), name
            assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


def test_gradients_are_clipped_by_global_norm():
    for name in RUNS:
        run, setting, _ = recipe(name)
        pair = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = torch.optim.AdamW([{"params": [p], "factor": 1.0, "frozen_epochs": 0.0} for p in pair])
        pair[0].grad, pair[1].grad = torch.tensor([30.0]), torch.tensor([40.0])
        ready_gradients(optimizer, run.optim, step=0, epoch_steps=1)
        norm = math.hypot(*(float(parameter.grad) for parameter in pair))
        assert norm == pytest.approx(setting["clip"] or 50.0, rel=1e-4), name
        assert float(pair[1].grad / pair[0].grad) == pytest.approx(4 / 3)


# ------------------------------------------------------------------------------------------ negatives


def hinges(sim_NN: Tensor, margin: float, which: str, reduction: str) -> float:
    """Return the triplet loss with the positives on the diagonal, by loops."""
    total, size = 0.0, len(sim_NN)
    for scores_NN in (sim_NN, sim_NN.T):
        costs = [
            [max(0.0, margin + float(scores_NN[i, j] - scores_NN[i, i])) for j in range(size) if j != i]
            for i in range(size)
        ]
        per_pair = [sum(row) if which == "all" else max(row) for row in costs]
        total += sum(per_pair) / (1 if reduction == "sum" else size * (size - 1 if which == "all" else 1))
    return total


def test_negatives_of_each_epoch_match_papers():
    sim_NN = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.eye(6, dtype=torch.bool)
    for name in RUNS:
        run, setting, _ = recipe(name)
        if setting["objective"] != "triplet":
            assert run.objective == setting["objective"]
            continue
        objective = OBJECTIVES.build(run.objective)
        for epoch, which in enumerate(setting["negatives"]):
            wanted = hinges(sim_NN, setting["margin"], which, setting["reduction"])
            for time in (epoch, epoch + 0.5, epoch + 0.9999):
                loss = objective(sim_NN, torch.arange(6), pairs, epoch=time)["loss"]
                assert float(loss) == pytest.approx(wanted, rel=1e-12), (name, time)
