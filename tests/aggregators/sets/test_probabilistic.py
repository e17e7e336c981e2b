"""`probabilistic`, a Gaussian per set: its mean, and its precision under autocast."""

import pytest
import torch

from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS


def test_mean_equals_output_of_mean_aggregator():
    torch.manual_seed(0)
    module = AGGREGATORS.build("probabilistic", 8)
    x_BND, mask_BN = random_sets([4, 1, 3], 8)
    both, alone = module(x_BND, mask_BN), module.mean(x_BND, mask_BN)
    torch.testing.assert_close(both.vectors[:, 0], alone.vectors)
    torch.testing.assert_close(both.weights, alone.weights)
    assert module.weights_over == "ranks"
    assert module.mean is not module.pool
    weight = AGGREGATORS.build("probabilistic(mean=pma(k=1, heads=2))", 8)(x_BND, mask_BN).weights
    assert weight.shape == (3, 4)


def test_gcn_then_probabilistic_makes_a_distribution():
    module = AGGREGATORS.build("gcn(then=probabilistic)", 8)
    assert (module.makes, module.num_embeddings) == ("distribution", 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_log_variance_is_float32_under_autocast(dtype):
    torch.manual_seed(0)
    module = AGGREGATORS.build("probabilistic", 16).eval()
    x_BND, mask_BN = random_sets([9, 4], 16)
    expected = module(x_BND, mask_BN).vectors
    with torch.autocast("cpu", dtype):
        found = module(x_BND, mask_BN).vectors
        in_half = module(x_BND.masked_fill(~mask_BN[..., None], 0.0).to(dtype), mask_BN).vectors
    assert found.dtype == in_half.dtype == torch.float32
    torch.testing.assert_close(found[:, 1], expected[:, 1], atol=1e-5, rtol=1e-6)
