from __future__ import annotations

import numpy as np
import pytest
import torch

from polypool.infra.errors import InputError
from polypool.infra.registry import OBJECTIVES, REGULARISERS, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives


def pairs(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    row_T = torch.arange(size)
    return row_T, batch_positives(10 + row_T, row_T)


def scores(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return (
        torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    )


@pytest.mark.parametrize("case", ["early", "mid", "collapsed", "b1"])
@pytest.mark.parametrize(("mode", "epoch"), [("sum", 0.5), ("max", 1.0)])
def test_triplet_reproduces_the_recorded_numbers(golden, case, mode, epoch):
    z = np.load(golden / "triplet.npz", allow_pickle=False)
    sim = torch.from_numpy(z[f"{case}/scores"]).requires_grad_()
    loss = OBJECTIVES.build("triplet(margin=0.2)")(sim, *pairs(len(sim)), epoch=epoch)["loss"]
    np.testing.assert_allclose(loss.item(), z[f"{case}/loss_{mode}"], atol=1e-5, rtol=1e-5)
    if f"{case}/grad_{mode}" in z:
        loss.backward()
        np.testing.assert_allclose(sim.grad, z[f"{case}/grad_{mode}"], atol=1e-6)


def explicit(spec: str, sim: np.ndarray, row_T: np.ndarray, positive_VT: np.ndarray, epoch: float) -> float:
    """The objectives by their definition, pair by pair."""
    losses = []
    for direction in ("to_text", "to_visual"):
        costs = []
        for column, row in enumerate(row_T):
            pair = sim[row, column]
            scores, mine = (x[row] if direction == "to_text" else x[:, column] for x in (sim, positive_VT))
            side = scores[~mine]
            if spec.startswith("infonce"):
                costs.append(np.log(np.exp(np.r_[pair, side] / 0.05).sum()) - pair / 0.05)
                continue
            if epoch >= 1 and "semi_hard" in spec:
                side = np.array([side[side < pair].max() if (side < pair).any() else side.min()])
            elif epoch >= 1 and "all" not in spec:
                side = np.array([side.max()])
            costs.extend(np.maximum(0, 0.2 + side - pair))
        losses.append(np.sum(costs) if spec.startswith("triplet") and "mean" not in spec else np.mean(costs))
    return float(np.mean(losses) if spec.startswith("infonce") else np.sum(losses))


@pytest.mark.parametrize(
    "spec",
    [
        "triplet",
        "triplet(reduction=mean)",
        "triplet(negatives=all)",
        "triplet(negatives=all, reduction=mean)",
        "triplet(negatives=semi_hard)",
        "triplet(negatives=semi_hard, reduction=mean)",
        "infonce(temperature=0.05)",
    ],
)
@pytest.mark.parametrize("epoch", [0.0, 3.0])
def test_against_the_definition_with_duplicates_and_several_captions(spec, epoch):
    objective = OBJECTIVES.build(spec)
    # a batch of pairs in which image 7 comes twice, and a batch of 3 images with 2, 1 and 3 captions
    item = torch.tensor([5, 7, 2, 7, 9])
    row_T = torch.tensor([0, 0, 1, 2, 2, 2])
    cases = [(scores(5, 5), item, torch.arange(5)), (scores(3, 6), torch.arange(3), row_T)]
    for sim, item_V, row_T in cases:
        positive_VT = batch_positives(item_V, row_T)
        sim.requires_grad_()
        loss = objective(sim, row_T, positive_VT, epoch=epoch)["loss"]
        expected = explicit(spec, sim.detach().numpy(), row_T.numpy(), positive_VT.numpy(), epoch)
        assert loss.item() == pytest.approx(expected, abs=1e-9)
        assert torch.autograd.gradcheck(
            lambda s, r=row_T, p=positive_VT: objective(s, r, p, epoch=epoch)["loss"], (sim,)
        )


def test_semi_hard_negatives_by_hand():
    sim = torch.tensor([[0.5, 0.4, 0.6], [0.9, 0.1, 0.8], [0.45, 0.2, 0.5]])
    cost = OBJECTIVES.build("triplet(negatives=semi_hard, warmup_epochs=0)")(sim, *pairs(3), epoch=0)["loss"]
    # rows: 0.4 below 0.5; nothing below 0.1, so the lowest, 0.8; 0.45 below 0.5
    # columns: 0.45 below 0.5; nothing below 0.1, so 0.2; nothing below 0.5, so 0.6
    assert cost.item() == pytest.approx(0.1 + 0.9 + 0.15 + 0.15 + 0.3 + 0.3)


@pytest.mark.parametrize("case", ["recipe", "with_div", "triplet_only"])
def test_images_with_all_their_captions(golden, case):
    """The triplet loss of DivE, beside its regularisers, from embeddings that are sets."""
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
YES_OR_NO = ("siglip", "pcmepp")  # to which all positives are alike, and each counts by itself


@pytest.mark.parametrize("spec", EVERY)
def test_duplicates_of_an_image_are_not_negatives(spec):
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
def test_what_is_not_a_number_stays_so(spec):
    objective = OBJECTIVES.build(spec)
    for place in ((1, 1), (1, 2)):
        sim = scores(4, 4)
        sim[place] = torch.nan
        assert objective(sim, *pairs(4), epoch=2.0)["loss"].isnan()


@pytest.mark.parametrize("spec", EVERY)
def test_under_autocast_scores_in_single_precision_stay_so(spec):
    """Scores of 60,000 times 1 / temperature are beyond half precision."""
    sim = (6e4 * scores(4, 4).float()).requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = OBJECTIVES.build(spec)(sim, *pairs(4), epoch=2.0)["loss"]
    loss.backward()
    assert loss.dtype == torch.float32
    if "paper" not in spec:  # whose uniformity is a logarithm of exponentials: infinite here, and K one
        assert loss.isfinite()
    assert sim.grad.isfinite().all()


@pytest.mark.parametrize("spec", EVERY)
def test_a_batch_of_one_item_has_no_negatives(spec):
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


@pytest.mark.parametrize(
    "spec",
    [
        "triplet(reduction=max)",
        "triplet(negatives=hard(k=0))",
        "infonce(margin=-0.1)",
        "infonce(negatives=adopt_k(rule=both))",
        "infonce(temperature=0)",
        "infonce(temperature='x')",
        "infonce(temperature=0.009, learned=True)",
        "siglip(scale=0)",
        "adopt(rule=both)",
        "adopt(temperature=0)",
        "adopt(scale=-1)",
    ],
)
def test_a_bad_parameter_is_refused(spec):
    with pytest.raises(InputError, match=r"must be|not supported"):
        OBJECTIVES.build(spec)


@pytest.mark.parametrize(
    ("registry", "spec", "message"),
    [
        (OBJECTIVES, "triplet(margin=-1)", "margin must be at least 0, not -1"),
        (OBJECTIVES, "triplet(warmup_epochs=-0.5)", "warmup_epochs must be at least 0"),
        (OBJECTIVES, "triplet(margin='wide')", "margin must be a finite number, not 'wide'"),
        (OBJECTIVES, "adopt(margin=-0.1)", "margin must be at least 0"),
        (OBJECTIVES, "adopt(scale=0)", "scale must be above 0, not 0"),
        (
            OBJECTIVES,
            "triplet(negatives=easy)",
            r"unknown miner 'easy'.* Choices: adopt_k, all, hard, semi_hard",
        ),
        (OBJECTIVES, "infonce(temperature=1e999)", "temperature must be a finite number"),
        (REGULARISERS, "mmd(weight=0.1, gamma=0)", "gamma must be above 0"),
        (REGULARISERS, "mmd(weight=-1)", "weight must be at least 0"),
        (SIMILARITIES, "smooth_chamfer(alpha=-1)", "alpha must be above 0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(registry, spec, message):
    with pytest.raises(InputError, match=message):
        registry.build(spec)
