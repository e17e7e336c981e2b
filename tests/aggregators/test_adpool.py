from __future__ import annotations

import numpy as np
import pytest
import torch

from polypool.aggregators.contract import check_aggregator
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.ranks.adpool import ADPool
from polypool.infra.registry import AGGREGATORS

VARIANTS = [
    "adpool(token=False)",
    "adpool(embedding=False)",
    "adpool(balance=0.25)",
    "adpool(per_channel=False, relu=False)",
]


@pytest.mark.parametrize("spec", VARIANTS)
def test_contract(spec):
    torch.manual_seed(0)
    check_aggregator(AGGREGATORS.build(spec, 6), 6)


def explicit(pool: ADPool, x_ND):
    """Equations 3 to 5 for one set."""
    levels = []
    if pool.linear is not None:
        sorted_ND = x_ND.sort(dim=0, descending=True).values
        score_NC = sorted_ND @ pool.linear.weight.T + pool.linear.bias
        score_NC = score_NC.clamp(min=0) if pool.relu else score_NC
        levels.append((score_NC.exp() / score_NC.exp().sum(dim=0) * sorted_ND).sum(dim=0))
    if pool.embedding:
        levels.append((x_ND.exp() / x_ND.exp().sum(dim=0) * x_ND).sum(dim=0))
    if len(levels) == 1:
        return levels[0]
    if pool.balance is None:
        return pool.fixed_weight * levels[0] + (1 - pool.fixed_weight) * levels[1]
    score = torch.cat([pool.balance.weight @ level + pool.balance.bias for level in levels])
    return (score.softmax(dim=0)[:, None] * torch.stack(levels)).sum(dim=0)


@pytest.mark.parametrize("spec", ["adpool", *VARIANTS])
def test_values_and_gradients_follow_the_definition(spec):
    torch.manual_seed(0)
    pool = AGGREGATORS.build(spec, 5).double()
    for parameter in pool.parameters():
        torch.nn.init.normal_(parameter)
    x_BND, mask_BN = random_sets([5, 1, 2, 13], 5, pad=2, dtype=torch.float64)
    x_BND.requires_grad_()
    found_BD = pool(x_BND, mask_BN).vectors
    expected_BD = torch.stack(
        [explicit(pool, x_ND[mask_N]) for x_ND, mask_N in zip(x_BND, mask_BN, strict=True)]
    )
    torch.testing.assert_close(found_BD, expected_BD, atol=1e-10, rtol=1e-8)
    cot_BD, inputs = torch.randn(4, 5, dtype=torch.float64), (x_BND, *pool.parameters())
    found, wanted = (torch.autograd.grad((out * cot_BD).sum(), inputs) for out in (found_BD, expected_BD))
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-7)


def load(z, dim=16) -> ADPool:
    pool = ADPool(dim)
    pool.load_state_dict(
        {key.removeprefix("params_A/"): torch.from_numpy(z[key]) for key in z if key.startswith("params_A/")}
    )
    return pool


@pytest.mark.parametrize("pad", [0, 4])
@pytest.mark.parametrize("case", ["full", "alone_5", "single"])
def test_the_recorded_numbers_whatever_the_padding(golden, case, pad):
    z = np.load(golden / "adpool.npz", allow_pickle=False)
    pool, features = load(z), torch.from_numpy(z[f"{case}/features"]).requires_grad_()
    x_BND = torch.nn.functional.pad(features, (0, 0, 0, pad), value=3.0)
    mask_BN = torch.arange(x_BND.shape[1]) < torch.from_numpy(z[f"{case}/lengths"])[:, None]
    shares = []
    pool.balance.register_forward_hook(lambda module, inputs, score: shares.append(score))
    pooled_BD = pool(x_BND, mask_BN).vectors
    share_B2 = torch.cat(shares, dim=1).softmax(dim=1)
    np.testing.assert_allclose(share_B2.detach(), z[f"{case}/fusion_weights"], atol=2e-6, rtol=0)
    np.testing.assert_allclose(pooled_BD.detach(), z[f"{case}/pooled"], atol=1e-5, rtol=1e-5)
    if f"{case}/cot_pooled" not in z:
        return
    (pooled_BD * torch.from_numpy(z[f"{case}/cot_pooled"])).sum().backward()
    np.testing.assert_allclose(features.grad, z[f"{case}/grad_features"], atol=2e-5, rtol=1e-4)
    for name, parameter in pool.named_parameters():
        np.testing.assert_allclose(parameter.grad, z[f"{case}/grad_param/{name}"], atol=2e-5, rtol=1e-4)


def test_token_weights():
    x_BND, mask_BN = random_sets([3, 7], 5)
    weight_BND = ADPool(5)(x_BND, mask_BN).weights
    assert weight_BND.shape == x_BND.shape
    torch.testing.assert_close(weight_BND.sum(dim=1), torch.ones(2, 5))
    assert (weight_BND[~mask_BN] == 0).all()
    assert AGGREGATORS.build("adpool(per_channel=False)", 5)(x_BND, mask_BN).weights.shape == mask_BN.shape
    assert AGGREGATORS.build("adpool(token=False)", 5)(x_BND, mask_BN).weights is None
