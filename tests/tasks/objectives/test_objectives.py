"""Objectives: recorded outputs, positives, batches without negatives, autocast, learned temperature."""

import numpy as np
import pytest
import torch
from score_batches import pairs

from polypool.infra.registry import OBJECTIVES, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives


def scores(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, columns, generator=generator, dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("case", ["early", "mid", "collapsed", "b1"])
@pytest.mark.parametrize(("mode", "epoch"), [("sum", 0.5), ("max", 1.0)])
def test_triplet_matches_recorded_outputs(golden, case, mode, epoch):
    z = np.load(golden / "triplet.npz", allow_pickle=False)
    sim = torch.from_numpy(z[f"{case}/scores"]).requires_grad_()
    loss = OBJECTIVES.build("triplet(margin=0.2)")(sim, *pairs(len(sim)), epoch=epoch)["loss"]
    np.testing.assert_allclose(loss.item(), z[f"{case}/loss_{mode}"], atol=1e-5, rtol=1e-5)
    if f"{case}/grad_{mode}" in z:
        loss.backward()
        np.testing.assert_allclose(sim.grad, z[f"{case}/grad_{mode}"], atol=1e-6)


@pytest.mark.parametrize("case", ["recipe", "with_div", "triplet_only"])
def test_triplet_on_sets_matches_recorded_dive_loss(golden, case):
    """DivE's triplet loss without its regularisers, on sets, with five captions per image."""
    z = np.load(golden / "dive_loss.npz", allow_pickle=False)
    visual, text = (torch.from_numpy(z[f"{case}/{n}"]).double() for n in ("images", "captions"))
    sim = SIMILARITIES.build("smooth_chamfer")(visual, text)
    row_T = torch.arange(len(visual)).repeat_interleave(5)
    positive_VT = batch_positives(torch.arange(len(visual)), row_T)
    objective = OBJECTIVES.build("triplet(reduction=mean, warmup_epochs=0)")
    loss = objective(sim, row_T, positive_VT, epoch=0)["loss"]
    assert loss.item() == pytest.approx(z[f"{case}/ref64_i2t"] + z[f"{case}/ref64_t2i"], abs=1e-9)


EVERY = [
    "triplet",
    "triplet(negatives=all)",
    "triplet(negatives=semi_hard)",
    "triplet(negatives=hard(k=2))",
    "triplet(negatives=adopt_k, reduction=mean)",
    "triplet(reduction=mean, warmup_epochs=3)",
    "infonce",
    "infonce(temperature=0.07, learned=True)",
    "infonce(negatives=hard)",
    "infonce(negatives=semi_hard, margin=0.2)",
    "infonce(negatives=adopt_k, margin=0.2)",
    "siglip",
    "pcmepp",
    "adopt",
    "adopt(rule=paper, margin=0, positive_in_denominator=False, halve=False)",
]
YES_OR_NO = ("siglip", "pcmepp")  # sigmoid losses, in which every positive pair counts


@pytest.mark.parametrize("spec", EVERY)
def test_duplicate_images_are_not_negatives(spec):
    objective = OBJECTIVES.build(spec)
    item = torch.tensor([1, 1, 2])
    sim = torch.tensor([[0.5, 0.9, 0.0], [0.9, 0.5, 0.0], [0.0, 0.0, 0.5]], requires_grad=True)
    row_T = torch.arange(3)
    objective(sim, row_T, batch_positives(item, row_T), epoch=2.0)["loss"].backward()
    if spec in YES_OR_NO:
        assert sim.grad[0, 1] == sim.grad[1, 0] < 0
    else:
        assert sim.grad[0, 1] == sim.grad[1, 0] == 0


@pytest.mark.parametrize("spec", EVERY)
def test_float32_scores_stay_float32_under_autocast(spec):
    """Scores of 60,000 divided by the temperature overflow float16."""
    sim = (6e4 * scores(4, 4).float()).requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = OBJECTIVES.build(spec)(sim, *pairs(4), epoch=2.0)["loss"]
    loss.backward()
    assert loss.dtype == torch.float32
    if "paper" not in spec:  # its uniformity, a log of exponentials, is infinite here, and K is 1
        assert loss.isfinite()
    assert sim.grad.isfinite().all()


@pytest.mark.parametrize("spec", EVERY)
def test_batch_of_one_item_has_no_negatives(spec):
    sim = torch.tensor([[0.3, 0.1], [0.2, 0.3]], requires_grad=True)
    loss = OBJECTIVES.build(spec)(sim, torch.arange(2), torch.ones(2, 2, dtype=torch.bool), epoch=2.0)["loss"]
    loss.backward()
    if spec == "siglip":
        expected = -2 * np.log(1 / (1 + np.exp(10 - 10 * np.array([0.3, 0.1, 0.2, 0.3])))).mean()
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        assert (sim.grad < 0).all()
    elif spec == "pcmepp":
        expected = -2.2 * np.log(1 / (1 + np.exp(-5 - 5 * np.array([0.3, 0.1, 0.2, 0.3])))).mean()
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        assert (sim.grad < 0).all()
    else:
        assert loss.item() == 0
        assert (sim.grad == 0).all()


def test_learned_scale_is_clipped_at_100_and_can_decrease():
    objective = OBJECTIVES.build("infonce(temperature=0.01, learned=True)").double()
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)

    def step(sim_VT: torch.Tensor) -> float:
        terms = objective(sim_VT, *pairs(3), epoch=0.0)
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        return terms["temperature"].item()

    objective.log_scale.data.add_(3.0)
    right, wrong = (torch.eye(3, dtype=torch.float64) * sign for sign in (0.01, -0.01))
    assert step(right) == pytest.approx(0.01)  # even from far beyond the bound
    assert step(right) == pytest.approx(0.01)
    step(wrong)
    assert step(wrong) > 0.01
