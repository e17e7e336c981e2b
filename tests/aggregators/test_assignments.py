"""Aggregators that assign elements to centres, against loops over their formulas, in float64."""

import pytest
import torch
from explicit import Weights, hold_to_formula, linear, mixed, unit
from torch import Tensor

from polypool.aggregators.assignments.assigning import sinkhorn
from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS


def mlp_of(p: Weights, name: str, x_D: Tensor, last: int) -> Tensor:
    return linear(p, f"{name}.{last}", linear(p, f"{name}.0", x_D).clamp(min=0))


def salad(x_ND: Tensor, p: Weights) -> Tensor:
    n, k = len(x_ND), 2
    rows = [[mlp_of(p, "score", x_D, 3)[c].exp() for x_D in x_ND] for c in range(k)]
    rows.append([p["dustbin"].exp()] * n)
    each = min(1, n / (2 * k))
    masses = [each] * k + [n - k * each]
    for _ in range(3):
        rows = [[mass * cell / sum(row) for cell in row] for mass, row in zip(masses, rows, strict=True)]
        columns = [sum(row[i] for row in rows) for i in range(n)]
        rows = [[cell / column for cell, column in zip(row, columns, strict=True)] for row in rows]
    elements = [mlp_of(p, "element", x_D, 3) for x_D in x_ND]
    sums = [mixed(row, elements) for row in rows[:k]]
    token_D = mlp_of(p, "token", sum(x_ND) / n, 2)
    return torch.stack([unit(token_D), *map(unit, sums)])


def test_salad_follows_the_formula_in_small_sets_too():
    hold_to_formula("salad(k=2, hidden=5)", salad)


@pytest.mark.parametrize("elements_last", [True, False])
def test_sinkhorns_plan_meets_the_masses(elements_last):
    x_BKN, _ = random_sets([3, 3], 9)
    mask_BN = torch.arange(9) < torch.tensor([[9], [4]])
    mass_BK, mass_B = torch.tensor([[1.0, 2.0, 6.0], [0.5, 1.5, 2.0]]), torch.tensor([1.0, 1.0])
    for iterations, other in ((1, 1.0), (200, 1e-5)):
        given = {"mass_BK": mass_BK, "mass_B": mass_B, "iterations": iterations}
        plan_BKN = sinkhorn(100 * x_BKN / 40, mask_BN, **given, elements_last=elements_last)
        assert (plan_BKN.transpose(1, 2)[~mask_BN] == 0).all()
        off_centres = (plan_BKN.sum(dim=2) - mass_BK).abs().max()
        off_elements = (plan_BKN.sum(dim=1)[mask_BN] - 1).abs().max()
        exact, rough = (off_elements, off_centres) if elements_last else (off_centres, off_elements)
        assert exact < 1e-5
        assert rough < max(other, 5e-3) if iterations > 1 else rough > 1e-3


def test_netvlad_starts_from_the_distances_to_its_centres():
    torch.manual_seed(0)
    module = AGGREGATORS.build("netvlad(k=5)", 16)
    x_BND, mask_BN = random_sets([7], 16)
    unit_ND = torch.nn.functional.normalize(x_BND[0], dim=-1)
    distance_NK = torch.cdist(unit_ND, module.centre_KD).square()
    expected_KN = (-4 * distance_NK).softmax(dim=1).T
    torch.testing.assert_close(module(x_BND, mask_BN).weights[0], expected_KN, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module.centre_KD.norm(dim=-1), torch.ones(5))


def test_salad_gives_each_cluster_one_element_of_many_and_uses_a_given_token():
    module = AGGREGATORS.build("salad(k=3, iterations=100)", 8).eval()
    x_BND, mask_BN = random_sets([20, 2], 8)
    pooled = module(x_BND, mask_BN)
    expected = torch.tensor([[0.0, 1, 1, 1], [0.0, *[1 / 3] * 3]])
    torch.testing.assert_close(pooled.weights.sum(dim=2), expected, atol=1e-3, rtol=0)
    given = module(x_BND, mask_BN, global_feature_BS=torch.randn(2, 8)).vectors
    assert not torch.allclose(given[:, 0], pooled.vectors[:, 0])
    torch.testing.assert_close(given[:, 1:], pooled.vectors[:, 1:])
