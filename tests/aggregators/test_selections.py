"""Aggregators that choose elements, ask by a text or go along a sequence, against loops over their formulas."""

import math

import pytest
import torch
from explicit import Weights, gelu, hold_to_formula, linear, mixed, norm
from torch import Tensor

from polypool.aggregators.aggregator import Context
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.selections.ts2_select import chosen
from polypool.infra.registry import AGGREGATORS


def mean(vectors: list[Tensor]) -> Tensor:
    return sum(vectors) / len(vectors)


def constbert(x_ND: Tensor, p: Weights) -> Tensor:
    last = len(p["weight_PK"]) - 1
    return torch.stack(
        [sum(p["weight_PK"][min(n, last), k] * x_D for n, x_D in enumerate(x_ND)) for k in range(3)]
    )


def ts2_select(x_ND: Tensor, p: Weights) -> Tensor:
    inner = [gelu(linear(p, "inner.1", norm(p, "inner.0", x_D))) for x_D in x_ND]
    scores = []
    for y_H in inner:
        hidden = gelu(linear(p, "score.0", torch.cat((y_H, mean(inner)))))
        scores.append(linear(p, "score.2", hidden).tanh()[0])
    if len(x_ND) <= 2:
        return mean(list(x_ND))
    low, high = -10.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        above = sum(0.5 * math.erfc((middle - score.item()) / 0.3 / math.sqrt(2)) for score in scores)
        low, high = (middle, high) if above > 2 else (low, middle)
    # the threshold's gradient is the mean of the scores' by their density, since their chances sum to k
    density = [math.exp(-0.5 * ((score.item() - low) / 0.3) ** 2) for score in scores]
    moved = sum(d * (score - score.detach()) for d, score in zip(density, scores, strict=True)) / sum(density)
    chances = [0.5 * torch.erfc((low + moved - score) / 0.3 / math.sqrt(2)) for score in scores]
    return mixed(chances, x_ND) / sum(chances)


FORMULAS = {
    "constbert(k=3, positions=4)": constbert,
    "ts2_select(k=2, sigma=0.3)": ts2_select,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_formula(spec):
    hold_to_formula(spec, FORMULAS[spec])


def test_k_are_chosen_on_average_as_often_as_drawn_noise_chooses_them():
    torch.manual_seed(0)
    score_BN = 0.2 * torch.randn(2, 36)
    mask_BN = torch.arange(36) < torch.tensor([[36], [3]])
    chance_BN = chosen(score_BN, mask_BN, k=4, sigma=0.05)
    torch.testing.assert_close(chance_BN.sum(dim=1), torch.tensor([4.0, 3.0]))
    assert chance_BN[1].tolist() == mask_BN[1].float().tolist()
    drawn_SN = score_BN[0] + 0.05 * torch.randn(20_000, 36)
    often_N = torch.zeros(20_000, 36).scatter(1, drawn_SN.topk(4).indices, 1.0).mean(dim=0)
    assert (chance_BN[0] - often_N).abs().max() < 0.1


def test_all_of_few_are_chosen_with_a_finite_gradient_however_high_their_scores():
    score_BN = torch.tensor([[0.999, 0.999], [-0.999, 0.0]], requires_grad=True)
    chance_BN = chosen(score_BN, torch.tensor([[True, True], [True, False]]), k=2, sigma=0.01)
    chance_BN.sum().backward()
    assert chance_BN.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert score_BN.grad.isfinite().all()


def test_laps_of_one_element_has_nothing_left_over():
    x_BND, mask_BN = random_sets([1, 3], 8)
    module = AGGREGATORS.build("laps(k=2)", 8)
    vectors, _, weights = module(x_BND, mask_BN, context=Context(x_BND, mask_BN))
    assert not vectors[0, 2].any()
    torch.testing.assert_close(vectors[0, :2], x_BND[0, :1].expand(2, -1))
    torch.testing.assert_close(weights.sum(dim=2), torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]))
    assert ((weights[1, :2] > 0).sum(dim=1) == 2).all()
    assert (weights[1, 2] > 0).sum() == 1
