"""`attend` with one and several queries; edge cases of query-based aggregators."""

import pytest
import torch

from polypool.aggregators.attention import attend
from polypool.aggregators.random_sets import random_sets
from polypool.infra.registry import AGGREGATORS


@pytest.mark.parametrize("queries", [1, 7])  # a single query forms no keys and values
def test_attend_matches_scaled_dot_product_attention(queries):
    torch.manual_seed(0)
    key, value = torch.nn.Linear(24, 24, bias=False).double(), torch.nn.Linear(24, 24).double()
    x_BND, mask_BN = random_sets([5, 2], 24, dtype=torch.float64)
    x_BND = x_BND.masked_fill(~mask_BN[..., None], 0.0).requires_grad_()
    query_BKE = torch.randn(2, queries, 24, dtype=torch.float64, requires_grad=True)
    out_BKE, weight_BKHN = attend(query_BKE, x_BND, mask_BN, key=key, value=value, heads=2)
    split = [part.unflatten(-1, (2, 12)).transpose(1, 2) for part in (query_BKE, key(x_BND), value(x_BND))]
    expected = torch.nn.functional.scaled_dot_product_attention(*split, attn_mask=mask_BN[:, None, None])
    expected = expected.transpose(1, 2).flatten(2)
    torch.testing.assert_close(out_BKE, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(weight_BKHN.sum(dim=-1), torch.ones(2, queries, 2, dtype=torch.float64))
    given, cotangent = [query_BKE, x_BND, key.weight, *value.parameters()], torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out, given, cotangent) for out in (out_BKE, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_simpool_of_equal_values_is_finite(dtype):
    module = AGGREGATORS.build("simpool(gamma=2.0)", 4).to(dtype)
    x_BND = torch.ones(1, 3, 4, dtype=dtype, requires_grad=True)
    module(x_BND, torch.ones(1, 3, dtype=torch.bool)).vectors.sum().backward()
    assert x_BND.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_simpool_minimum_ignores_padding():
    module = AGGREGATORS.build("simpool(gamma=2.0)", 4)
    torch.nn.init.constant_(module.norm.bias, 9.0)
    x_BND, mask_BN = random_sets([3], 4)
    padded = torch.nn.functional.pad(x_BND, (0, 0, 0, 2)), torch.nn.functional.pad(mask_BN, (0, 2))
    torch.testing.assert_close(module(*padded).vectors, module(x_BND, mask_BN).vectors)


@pytest.mark.parametrize("spec", ["cait", "dino_block"])
def test_untrained_class_token_weighs_like_an_element(spec):
    total_B1 = AGGREGATORS.build(spec, 8).eval()(*random_sets([5, 1, 9], 8)).weights.sum(dim=-1)
    torch.testing.assert_close(total_B1.squeeze(), torch.tensor([5 / 6, 1 / 2, 9 / 10]), atol=0.03, rtol=0)
