"""What objectives learn: CLIP's temperature, SigLIP's scale and bias, each against its formula in float64."""

from __future__ import annotations

import math
import sys
import textwrap
import types

import numpy as np
import pytest
import torch

from polypool.infra.checks import run_checks
from polypool.infra.registry import OBJECTIVES
from polypool.infra.spec import trust_modules
from polypool.pipelines.checks.losses import ObjectiveChecks
from polypool.tasks.objectives.objective import Objective, batch_positives, pairs_and_negatives

# item 7 is drawn twice; then three items with 2, 1 and 3 captions; then one item alone
BATCHES = {
    "pairs": ([5, 7, 2, 7, 9], [0, 1, 2, 3, 4]),
    "items": ([4, 1, 6], [0, 0, 1, 2, 2, 2]),
    "one": ([3], [0, 0]),
}


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    item_V, row_T = (torch.tensor(numbers) for numbers in BATCHES[name])
    generator = torch.Generator().manual_seed(len(row_T))
    sim_VT = torch.rand(len(item_V), len(row_T), generator=generator, dtype=torch.float64) * 2 - 1
    return sim_VT, row_T, batch_positives(item_V, row_T)


def infonce(sim, row_T, positive_VT, log_scale: float) -> float:
    """Cross-entropy of each pair among its negatives and itself, one at a time."""
    logit, costs = math.exp(log_scale) * sim, []
    for text, row in enumerate(row_T):
        for line, positive in ((logit[row], positive_VT[row]), (logit[:, text], positive_VT[:, text])):
            rivals = [x for x, same in zip(line, positive, strict=True) if not same]
            pair = logit[row, text]
            costs.append(math.log(sum(math.exp(x) for x in [pair, *rivals])) - pair)
    return sum(costs) / len(costs)


def siglip(sim, row_T, positive_VT, log_scale: float, bias: float) -> float:
    """Algorithm 1 of the paper, entry by entry, with all positives."""
    total = 0.0
    for row, column in np.ndindex(*sim.shape):
        z = 1 if positive_VT[row, column] else -1
        total -= math.log(1 / (1 + math.exp(-z * (math.exp(log_scale) * sim[row, column] + bias))))
    return total / len(row_T)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(
    ("spec", "explicit", "first"),
    [
        ("infonce(temperature=0.07, learned=True)", infonce, [math.log(1 / 0.07)]),
        ("infonce(temperature=0.5, learned=True)", infonce, [math.log(2)]),
        ("siglip", siglip, [math.log(10), -10.0]),
        ("siglip(scale=2.5, bias=-1.5)", siglip, [math.log(2.5), -1.5]),
    ],
)
def test_value_and_gradients_are_those_of_the_formula(name, spec, explicit, first):
    sim_VT, row_T, positive_VT = batch(name)
    objective = OBJECTIVES.build(spec).double()
    learned = list(objective.parameters())
    np.testing.assert_allclose([x.item() for x in learned], first, rtol=1e-6)
    for x, value in zip(learned, first, strict=True):
        x.data.fill_(value)
    sim_VT.requires_grad_()
    loss = objective(sim_VT, row_T, positive_VT, epoch=0.0)["loss"]
    loss.backward()

    arrays = sim_VT.detach().numpy(), row_T.numpy(), positive_VT.numpy()
    assert loss.item() == pytest.approx(explicit(*arrays, *first), abs=1e-12)
    step = 1e-6
    for place, x in enumerate(learned):
        up, down = ([v + sign * step * (i == place) for i, v in enumerate(first)] for sign in (1, -1))
        slope = (explicit(*arrays, *up) - explicit(*arrays, *down)) / (2 * step)
        assert x.grad.item() == pytest.approx(slope, abs=1e-7)
    for entry in np.ndindex(*sim_VT.shape):
        up, down = (arrays[0].copy() for _ in range(2))
        up[entry] += step
        down[entry] -= step
        slope = (explicit(up, *arrays[1:], *first) - explicit(down, *arrays[1:], *first)) / (2 * step)
        assert sim_VT.grad[entry].item() == pytest.approx(slope, abs=1e-6)


def test_the_temperature_is_logged_and_falls_where_pairs_stand_out():
    objective = OBJECTIVES.build("infonce(temperature=0.2, learned=True)")
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.5)
    sim_VT, row_T = (
        torch.eye(4) + 0.1 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),
        torch.arange(4),
    )
    reached = []
    for _ in range(3):
        terms = objective(sim_VT, row_T, batch_positives(row_T, row_T), epoch=0.0)
        reached.append(terms["temperature"].item())
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
    assert reached[0] == pytest.approx(0.2)
    assert reached[0] > reached[1] > reached[2]


def test_the_factor_is_clipped_at_100_and_comes_down_again():
    objective = OBJECTIVES.build("infonce(temperature=0.01, learned=True)").double()
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)
    row_T = torch.arange(3)
    positive_VT = batch_positives(row_T, row_T)

    def step(sim_VT: torch.Tensor) -> float:
        terms = objective(sim_VT, row_T, positive_VT, epoch=0.0)
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        return terms["temperature"].item()

    objective.log_scale.data.add_(3.0)
    right, wrong = (torch.eye(3, dtype=torch.float64) * sign for sign in (0.01, -0.01))
    assert step(right) == pytest.approx(0.01)  # however far beyond the bound it was
    assert step(right) == pytest.approx(0.01)
    step(wrong)
    assert step(wrong) > 0.01


def test_siglip_logs_what_it_learns():
    objective = OBJECTIVES.build("siglip(scale=4, bias=-3)")
    terms = objective(*batch("pairs"), epoch=0.0)
    assert terms["scale"].item() == pytest.approx(4)
    assert terms["bias"].item() == -3
    assert not terms["scale"].requires_grad


def test_the_example_of_an_objective_keeps_its_promises(monkeypatch):
    """The one in the docstring of `Objective`, as a module of somebody else's."""
    example = Objective.__doc__.split("::\n", 1)[1]
    source = textwrap.dedent(example).replace('@OBJECTIVES.register("scaled_softmax")', "")
    module = types.ModuleType("own_objective")
    module.__dict__.update(
        nn=torch.nn, torch=torch, Objective=Objective, pairs_and_negatives=pairs_and_negatives
    )
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "own_objective", module)
    trust_modules("own_objective")
    outcomes = list(run_checks(ObjectiveChecks("own_objective:ScaledSoftmax(scale=5.0)").checks()))
    assert [str(outcome) for outcome in outcomes if not outcome.passed] == []
    assert "log_scale 1.609" in "\n".join(map(str, outcomes))
