"""Aggregators by queries against loops over their formulas, in float64."""

import copy

import pytest
import torch
from explicit import Weights, attention_of, heads_of, hold_to_formula, mlp_of, norm
from torch import Tensor

from polypool.aggregators.attention import attend
from polypool.aggregators.random_sets import random_inputs, random_sets
from polypool.aggregators.relations.set_transformer_pp import SetNorm
from polypool.infra.registry import AGGREGATORS


def map_(x_ND: Tensor, p: Weights) -> Tensor:
    vectors = []
    for query_D in p["query_KD"]:
        got_D = attention_of(query_D, list(x_ND), p, "attention", 2)
        vectors.append(got_D + mlp_of(norm(p, "norm", got_D, 1e-6), p, "mlp"))
    return torch.stack(vectors)


def aim(x_ND: Tensor, p: Weights) -> Tensor:
    deviation_D = (p["norm.running_var"] + 1e-6).sqrt()
    normal = [(x_D - p["norm.running_mean"]) / deviation_D for x_D in x_ND]
    return torch.stack([heads_of(query_D, normal, p, "", 3) for query_D in p["query_KD"]])


FORMULAS = {
    "map(k=3, heads=2, hidden=2)": map_,
    "aim(k=2, heads=3)": aim,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_formula(spec):
    hold_to_formula(spec, FORMULAS[spec])


@pytest.mark.parametrize("queries", [1, 7])  # of one, keys and values are not formed
def test_attention_is_that_of_keys_and_values_with_its_gradients(queries):
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


def test_one_query_forms_no_keys():
    key = torch.nn.Linear(24, 24, bias=False)
    seen = []
    key.register_forward_hook(lambda *_: seen.append(1))
    for queries in (1, 7):
        sets = random_sets([5, 2], 24)
        attend(torch.randn(1, queries, 24), *sets, key=key, value=torch.nn.Linear(24, 24), heads=2)
    assert seen == [1]


def test_aim_in_training_counts_real_elements_alone_and_keeps_their_statistics():
    module = AGGREGATORS.build("aim(heads=2)", 4).train()
    x_BND, mask_BN = random_sets([3, 5, 1], 4)
    real_RD = x_BND[mask_BN]
    out_BD = module(x_BND.masked_fill(~mask_BN[..., None], float("nan")), mask_BN).vectors
    torch.testing.assert_close(module.norm.running_mean, 0.1 * real_RD.mean(dim=0))
    torch.testing.assert_close(module.norm.running_var, 0.9 + 0.1 * real_RD.var(dim=0))
    deviation_D = (real_RD.var(dim=0, correction=0) + 1e-6).sqrt()
    normal_BND = (x_BND - real_RD.mean(dim=0)) / deviation_D
    module.norm = torch.nn.Identity()
    module.norm.forward = lambda x_RD, real_R: normal_BND.masked_fill(~mask_BN[..., None], 0.0).flatten(0, 1)
    torch.testing.assert_close(module(x_BND, mask_BN).vectors, out_BD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_simpool_of_equal_values_is_finite_with_its_gradient(dtype):
    module = AGGREGATORS.build("simpool(gamma=2.0)", 4).to(dtype)
    x_BND = torch.ones(1, 3, 4, dtype=dtype, requires_grad=True)
    module(x_BND, torch.ones(1, 3, dtype=torch.bool)).vectors.sum().backward()
    assert x_BND.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_pads_are_not_the_smallest_number_of_simpool():
    module = AGGREGATORS.build("simpool(gamma=2.0)", 4)
    torch.nn.init.constant_(module.norm.bias, 9.0)
    x_BND, mask_BN = random_sets([3], 4)
    padded = torch.nn.functional.pad(x_BND, (0, 0, 0, 2)), torch.nn.functional.pad(mask_BN, (0, 2))
    torch.testing.assert_close(module(*padded).vectors, module(x_BND, mask_BN).vectors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", ["map", "aim(k=2)", "cait", "dino_block", "pma", "xpool"])
def test_a_few_queries_to_a_thousand_elements_keep_their_precision(spec, dtype):
    torch.manual_seed(0)
    module = AGGREGATORS.build(spec, 64).eval()
    inputs = random_inputs([1000, 300], module=module, dim=64).fill(0.0)
    found = inputs.cast(dtype).pool(copy.deepcopy(module).to(dtype)).vectors.double()
    exact = inputs.cast(torch.float64).pool(module.double()).vectors
    assert (found - exact).abs().max() < 8 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("spec", ["cait", "dino_block"])
def test_the_token_has_a_share_too_about_that_of_an_element_at_the_start(spec):
    total_B1 = AGGREGATORS.build(spec, 8).eval()(*random_sets([5, 1, 9], 8)).weights.sum(dim=-1)
    torch.testing.assert_close(total_B1.squeeze(), torch.tensor([5 / 6, 1 / 2, 9 / 10]), atol=0.03, rtol=0)


def test_a_set_norm_keeps_how_elements_differ_in_length():
    x_BND = torch.tensor([[[3.0, -3.0], [1.0, -1.0], [9.0, 9.0]]])
    normal_ND = SetNorm(2)(x_BND, torch.tensor([[True, True, False]]))[0]
    torch.testing.assert_close(normal_ND[0], 3 * normal_ND[1])
    torch.testing.assert_close(normal_ND[:2].square().mean(), torch.tensor(1.0))
