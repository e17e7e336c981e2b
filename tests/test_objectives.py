from __future__ import annotations

import numpy as np
import pytest
import torch

from infra.errors import InputError
from infra.registry import OBJECTIVES


def pairs(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(size), torch.eye(size, dtype=torch.bool)


def scores(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return (
        torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    )


@pytest.mark.parametrize("case", ["early", "mid", "collapsed", "b1"])
@pytest.mark.parametrize(("mode", "epoch"), [("sum", 0.5), ("max", 1.0)])
def test_triplet_reproduces_the_recorded_numbers(golden, case, mode, epoch):
    z = np.load(golden / "triplet.npz", allow_pickle=False)
    sim = torch.from_numpy(z[f"{case}/scores"]).requires_grad_()
    loss = OBJECTIVES.build("triplet(margin=0.2)")(sim, *pairs(len(sim)), epoch=epoch)
    np.testing.assert_allclose(loss.item(), z[f"{case}/loss_{mode}"], atol=1e-5, rtol=1e-5)
    if f"{case}/grad_{mode}" in z:
        loss.backward()
        np.testing.assert_allclose(sim.grad, z[f"{case}/grad_{mode}"], atol=1e-6)


def explicit(spec: str, sim: np.ndarray, row_G: np.ndarray, positive_QG: np.ndarray, epoch: float) -> float:
    """The objectives by their definition, pair by pair."""
    costs = []
    for column, row in enumerate(row_G):
        pair = sim[row, column]
        to_text = sim[row][~positive_QG[row]]
        to_visual = sim[:, column][~positive_QG[:, column]]
        if spec.startswith("triplet"):
            hinges = [np.maximum(0, 0.2 + side - pair) for side in (to_text, to_visual)]
            costs.append(sum(h.sum() if epoch < 1 else h.max(initial=0) for h in hinges))
        else:
            sides = [
                np.log(np.exp(np.r_[pair, side] / 0.05).sum()) - pair / 0.05 for side in (to_text, to_visual)
            ]
            costs.append(sum(sides) / 2)
    return float(np.sum(costs) if "mean" not in spec and spec.startswith("triplet") else np.mean(costs))


@pytest.mark.parametrize("spec", ["triplet", "triplet(reduction=mean)", "infonce(temperature=0.05)"])
@pytest.mark.parametrize("epoch", [0.0, 3.0])
def test_against_the_definition_with_duplicates_and_several_captions(spec, epoch):
    objective = OBJECTIVES.build(spec)
    # a batch of pairs in which image 7 comes twice, and a batch of 3 images with 2, 1 and 3 captions
    item = torch.tensor([5, 7, 2, 7, 9])
    cases = [(scores(5, 5), torch.arange(5), item[:, None] == item)]
    row_G = torch.tensor([0, 0, 1, 2, 2, 2])
    cases.append((scores(3, 6), row_G, torch.arange(3)[:, None] == row_G))
    for sim, row_G, positive_QG in cases:
        sim.requires_grad_()
        loss = objective(sim, row_G, positive_QG, epoch=epoch)
        expected = explicit(spec, sim.detach().numpy(), row_G.numpy(), positive_QG.numpy(), epoch)
        assert loss.item() == pytest.approx(expected, abs=1e-9)
        assert torch.autograd.gradcheck(
            lambda s, r=row_G, p=positive_QG: objective(s, r, p, epoch=epoch), (sim,)
        )


@pytest.mark.parametrize("spec", ["triplet", "infonce"])
def test_duplicates_of_an_image_are_not_negatives(spec):
    objective = OBJECTIVES.build(spec)
    item = torch.tensor([1, 1, 2])
    sim = torch.tensor([[0.5, 0.9, 0.0], [0.9, 0.5, 0.0], [0.0, 0.0, 0.5]], requires_grad=True)
    objective(sim, torch.arange(3), item[:, None] == item, epoch=2.0).backward()
    assert sim.grad[0, 1] == sim.grad[1, 0] == 0


@pytest.mark.parametrize("spec", ["triplet", "infonce"])
def test_a_batch_of_one_item_has_no_negatives(spec):
    sim = torch.tensor([[0.3, 0.1], [0.2, 0.3]], requires_grad=True)
    loss = OBJECTIVES.build(spec)(sim, torch.arange(2), torch.ones(2, 2, dtype=torch.bool), epoch=2.0)
    loss.backward()
    assert loss.item() == 0
    assert (sim.grad == 0).all()


@pytest.mark.parametrize(
    "spec", ["triplet(reduction=max)", "infonce(temperature=0)", "infonce(temperature='x')"]
)
def test_a_bad_parameter_is_refused(spec):
    with pytest.raises(InputError, match=r"must be|not supported"):
        OBJECTIVES.build(spec)
