import numpy as np
import pytest
import torch
from explicit import hold_to_formula, trained

from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.ranks.adpool import ADPool
from polypool.infra.registry import AGGREGATORS


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


@pytest.mark.parametrize(
    "params",
    ["token=True", "token=False", "embedding=False", "balance=0.25", "per_channel=False, relu=False"],
)
def test_values_and_gradients_follow_the_definition(params):
    pool = trained(f"adpool({params})", 5)
    hold_to_formula(pool, lambda x_ND, _: explicit(pool, x_ND), dim=5)


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
