"""Weights of `constbert`, probabilities of `ts2_select`, edge cases of `laps`."""

import torch
from explicit import Weights, hold_to_formula
from torch import Tensor

from polypool.aggregators.aggregator import Context
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.selections.ts2_select import chosen
from polypool.infra.registry import AGGREGATORS


def test_constbert_has_a_weight_per_vector_and_position():
    def constbert(x_ND: Tensor, p: Weights) -> Tensor:
        rows = [sum(p["weight_PK"][min(n, 3), k] * x_D for n, x_D in enumerate(x_ND)) for k in range(3)]
        return torch.stack(rows)

    hold_to_formula("constbert(k=3, positions=4)", constbert)


def test_ts2_select_probabilities_match_sampled_noise():
    torch.manual_seed(0)
    score_BN = 0.2 * torch.randn(2, 36)
    mask_BN = torch.arange(36) < torch.tensor([[36], [3]])
    chance_BN = chosen(score_BN, mask_BN, k=4, sigma=0.05)
    torch.testing.assert_close(chance_BN.sum(dim=1), torch.tensor([4.0, 3.0]))
    assert chance_BN[1].tolist() == mask_BN[1].float().tolist()
    drawn_SN = score_BN[0] + 0.05 * torch.randn(20_000, 36)
    often_N = torch.zeros(20_000, 36).scatter(1, drawn_SN.topk(4).indices, 1.0).mean(dim=0)
    assert (chance_BN[0] - often_N).abs().max() < 0.1


def test_ts2_select_takes_all_of_small_sets():
    score_BN = torch.tensor([[0.999, 0.999], [-0.999, 0.0]], requires_grad=True)
    chance_BN = chosen(score_BN, torch.tensor([[True, True], [True, False]]), k=2, sigma=0.01)
    chance_BN.sum().backward()
    assert chance_BN.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert score_BN.grad.isfinite().all()


def test_laps_has_zero_remainder_for_one_element():
    x_BND, mask_BN = random_sets([1, 3], 8)
    module = AGGREGATORS.build("laps(k=2)", 8)
    vectors, _, weights, _ = module(x_BND, mask_BN, context=Context(x_BND, mask_BN))
    assert not vectors[0, 2].any()
    torch.testing.assert_close(vectors[0, :2], x_BND[0, :1].expand(2, -1))
    torch.testing.assert_close(weights.sum(dim=2), torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]))
    assert ((weights[1, :2] > 0).sum(dim=1) == 2).all()
    assert (weights[1, 2] > 0).sum() == 1
