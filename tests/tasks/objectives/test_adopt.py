import math

import numpy as np
import pytest
import torch
from score_batches import pairs

from polypool.infra.registry import OBJECTIVES
from polypool.tasks.objectives.adopt import kth_highest, logsumexp_of_highest

CODE = {"rule": "code", "margin": 0.2, "positive_in_denominator": True, "halve": True}


def loss_of(sim: torch.Tensor, row_T=None, positive_VT=None, **given) -> dict[str, torch.Tensor]:
    inside = ", ".join(f"{name}={value}" for name, value in given.items())
    if row_T is None:
        row_T, positive_VT = pairs(len(sim))
    return OBJECTIVES.build(f"adopt({inside})")(sim, row_T, positive_VT, epoch=0.0)


def explicit(sim_VT, row_T, positive_VT, *, leak=False, **given) -> tuple[torch.Tensor, list[int]]:
    """Return the loss by its definition, pair by pair, and K of each direction.

    With `leak`, positives are candidate negatives with a score of 0, as in the authors' code.
    """
    given = CODE | given
    align = np.mean([sim_VT[row, column].item() for column, row in enumerate(row_T)])
    counts, losses = [], []
    for score, mine, rows in (
        (sim_VT, positive_VT, [(row, column) for column, row in enumerate(row_T)]),
        (sim_VT.T, positive_VT.T, [(column, row) for column, row in enumerate(row_T)]),
    ):
        n = score.shape[1]
        if given["rule"] == "paper":
            k = math.floor(n * math.cos((align + math.log(score.exp().mean().item())) * math.pi / 4))
        else:
            uniform = (-score).exp().masked_fill(mine, 1.0).mean().item()
            k = int(n * math.cos((align + uniform) ** 1.25)) + 1
        counts.append(min(max(k, 1), n - 1))
        costs = []
        placed = score.masked_fill(mine, 0.0).tolist()
        for row, column in rows:
            order = sorted(range(n), key=lambda j, line=placed[row]: -line[j])
            chosen = [j for j in order if leak or not mine[row, j]][: counts[-1]]
            logits = [(score[row, j] + given["margin"]) / 0.05 for j in chosen]
            pair = score[row, column] / 0.05
            competitors = [pair, *logits] if given["positive_in_denominator"] else logits
            costs.append(torch.stack(competitors).exp().sum().log() - pair)
        losses.append(sum(costs) / len(costs))
    return sum(losses) / (2 if given["halve"] else 1), counts


@pytest.mark.parametrize("case", ["b16_0", "b16_3", "b16_6", "b16_9", "b64_0"])
def test_adopt_matches_recorded_outputs(golden, case):
    """Where the authors' code picks a positive as a negative, check that nothing else differs."""
    z = np.load(golden / "adopt.npz", allow_pickle=False)
    sim = torch.from_numpy(z[f"{case}/scores"]).requires_grad_()
    found = loss_of(sim)
    found["loss"].backward()
    assert found["alignment"].item() == pytest.approx(float(z[f"{case}/align"]), abs=1e-6)
    assert found["uniformity"].item() == pytest.approx(float(z[f"{case}/uniform"]), abs=1e-6)
    assert [found["negatives"].item()] * 2 == z[f"{case}/K"].tolist()
    loss, gradient = sim.detach().double(), sim.grad
    if z[f"{case}/positive_drawn"] == 0:
        assert found["loss"].item() == pytest.approx(float(z[f"{case}/loss"]), abs=1e-5, rel=1e-5)
        np.testing.assert_allclose(gradient, z[f"{case}/grad_scores"], atol=2e-6, rtol=1e-4)
        return
    row_T, positive_VT = pairs(len(sim))
    for leak, target, slope in (
        (True, float(z[f"{case}/loss"]), torch.from_numpy(z[f"{case}/grad_scores"])),
        (False, found["loss"].item(), gradient),
    ):
        wide = loss.clone().requires_grad_()
        expected, _ = explicit(wide, row_T, positive_VT, leak=leak)
        expected.backward()
        assert target == pytest.approx(expected.item(), abs=1e-5, rel=1e-5)
        torch.testing.assert_close(slope.double(), wide.grad, atol=2e-6, rtol=1e-4)
    assert (gradient.diagonal() <= 0).all()


@pytest.mark.parametrize(
    ("positive", "negative", "code", "paper"),
    [(0, 0, 70, 127), (0.3, 0.1, 39, 121), (0.5, 0.1, 6, 113), (0.7, 0.05, 1, None)],
)
def test_negative_count_shrinks_as_training_progresses(positive, negative, code, paper):
    """Batches of 128 with constant scores; the paper's rule keeps more than 100 negatives."""
    sim = torch.full((128, 128), float(negative)).fill_diagonal_(positive)
    assert loss_of(sim)["negatives"].item() == pytest.approx(code, abs=1)
    if paper:
        assert loss_of(sim, rule="paper")["negatives"].item() == pytest.approx(paper, abs=1)


def test_opposed_pairs_use_all_negatives():
    assert loss_of(-torch.eye(4) * 3)["negatives"] == 3


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_top_k_logsumexp_counts_exactly_k_among_ties(k):
    line = torch.tensor([[3.0, 1, 1, 2, 1, 0, 3], [0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    for dim, x in ((1, line), (0, line.T.contiguous())):
        x.requires_grad_()
        counts = (torch.tensor(k), torch.tensor(1)) if dim == 1 else (torch.tensor(1), torch.tensor(k))
        found = logsumexp_of_highest(x, *counts, temperature=0.5)[1 - dim]
        highest = x.detach().sort(dim=dim, descending=True).values.narrow(dim, 0, k)
        torch.testing.assert_close(found, (highest / 0.5).logsumexp(dim))
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert gradient.sum(dim).tolist() == pytest.approx([2, 2])
        assert (gradient[x < highest.amin(dim, keepdim=True)] == 0).all()
        spare = torch.empty(x.shape).double()
        kth = kth_highest(x.detach(), torch.tensor(k), dim=dim, spare_VT=spare)
        torch.testing.assert_close(kth, highest.select(dim, k - 1))
