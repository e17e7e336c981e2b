"""Initial centres of `netvlad`, cluster masses of `salad`; test_recorded_averages.py has recorded outputs."""

import torch

from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS


def test_netvlad_initial_weights_follow_centre_distances():
    torch.manual_seed(0)
    module = AGGREGATORS.build("netvlad(k=5)", 16)
    x_BND, mask_BN = random_sets([7], 16)
    unit_ND = torch.nn.functional.normalize(x_BND[0], dim=-1)
    distance_NK = torch.cdist(unit_ND, module.centre_KD).square()
    expected_KN = (-4 * distance_NK).softmax(dim=1).T
    torch.testing.assert_close(module(x_BND, mask_BN).weights[0], expected_KN, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module.centre_KD.norm(dim=-1), torch.ones(5))


def test_salad_balances_clusters_and_uses_global_feature():
    module = AGGREGATORS.build("salad(k=3, iterations=100)", 8).eval()
    x_BND, mask_BN = random_sets([20, 2], 8)
    pooled = module(x_BND, mask_BN)
    expected = torch.tensor([[0.0, 1, 1, 1], [0.0, *[1 / 3] * 3]])
    torch.testing.assert_close(pooled.weights.sum(dim=2), expected, atol=1e-3, rtol=0)
    given = module(x_BND, mask_BN, global_feature_BS=torch.randn(2, 8)).vectors
    assert not torch.allclose(given[:, 0], pooled.vectors[:, 0])
    torch.testing.assert_close(given[:, 1:], pooled.vectors[:, 1:])
