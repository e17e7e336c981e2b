"""Aggregators with learned weights against loops over their formulas, in float64."""

import math

import pytest
import torch
from explicit import hold_to_formula, linear, mixed, norm, softmax, trained
from torch import Tensor
from torch.nn.functional import normalize

from polypool.aggregators.random_sets import random_sets
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


def gem(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    power = p["log_p"].exp()
    return (x_ND.clamp(min=1e-6) ** power).mean(dim=0) ** (1 / power)


def conv1d(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    return sum(x_D * p["kernel_PD"][min(n, 2)] for n, x_D in enumerate(x_ND))


def lip(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    logit_ND = torch.stack([p["project.weight"] @ x_D for x_D in x_ND])
    variance_D = logit_ND.var(dim=0, correction=0)
    normal_ND = (logit_ND - logit_ND.mean(dim=0)) / (variance_D + 1e-5).sqrt()
    scores = [12 / (1 + (-(p["scale_D"] * normal_D + p["shift_D"])).exp()) for normal_D in normal_ND]
    return mixed(softmax(scores), x_ND)


def adapool(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    mean_D, balance = sum(x_ND) / len(x_ND), 1 / (1 + (-p["balance"]).exp())
    near = softmax([2 * (x_D * mean_D).abs() / (x_D**2 + mean_D**2) for x_D in x_ND])
    large = softmax(list(x_ND))
    return sum((balance * near[n] + (1 - balance) * large[n]) * x_D for n, x_D in enumerate(x_ND))


def self_attention(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    new = []
    for x_D in x_ND:
        scores = [linear(p, "query", x_D) @ linear(p, "key", y_D) / math.sqrt(len(x_D)) for y_D in x_ND]
        attended_D = sum(a * linear(p, "value", y_D) for a, y_D in zip(softmax(scores), x_ND, strict=True))
        new.append(x_D + p["gate"] * attended_D)
    return sum(new) / len(new)


def seq2seq(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    h_D = x_ND.new_zeros(x_ND.shape[1])
    for x_D in x_ND:
        from_x = (p["gru.weight_ih_l0"] @ x_D + p["gru.bias_ih_l0"]).chunk(3)
        from_h = (p["gru.weight_hh_l0"] @ h_D + p["gru.bias_hh_l0"]).chunk(3)
        reset_D, update_D = (from_x[0] + from_h[0]).sigmoid(), (from_x[1] + from_h[1]).sigmoid()
        h_D = (1 - update_D) * (from_x[2] + reset_D * from_h[2]).tanh() + update_D * h_D
    return h_D


def sequential(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    new = [x_D + p["position_PD"][min(n, 3)] for n, x_D in enumerate(x_ND)]
    for layer in ("layers.0", "layers.1"):
        parts = [
            linear(p, f"{layer}.query_key_value", norm(p, f"{layer}.norm", y_D, 1e-12)).reshape(3, 2, -1)
            for y_D in new
        ]
        between = []
        for y_D, (query_HE, _, _) in zip(new, parts, strict=True):
            heads = []
            for head in range(2):
                scores = [query_HE[head] @ key_HE[head] / math.sqrt(3) for _, key_HE, _ in parts]
                heads.append(mixed(softmax(scores), [value_HE[head] for _, _, value_HE in parts]))
            between.append(y_D + linear(p, f"{layer}.out", torch.cat(heads)))
        new = []
        for y_D in between:
            hidden = linear(p, f"{layer}.up", norm(p, f"{layer}.norm_mlp", y_D, 1e-12))
            new.append(y_D + linear(p, f"{layer}.down", hidden * (1.702 * hidden).sigmoid()))
    unit = [(x_D + y_D) / (x_D + y_D).norm() for x_D, y_D in zip(x_ND, new, strict=True)]
    return sum(unit) / len(unit)


def gcn(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
    x_ND = x_ND / x_ND.norm(dim=1, keepdim=True)
    for layer in ("layers.0", "layers.1"):
        new = []
        for x_D in x_ND:
            received = linear(p, f"{layer}.receive", x_D)
            shares = [received @ linear(p, f"{layer}.send", y_D) / len(x_ND) for y_D in x_ND]
            sent_D = mixed(shares, [linear(p, f"{layer}.message", y_D) for y_D in x_ND])
            new.append(x_D + linear(p, f"{layer}.update", sent_D))
        x_ND = torch.stack(new)
    return (x_ND / x_ND.norm(dim=1, keepdim=True)).mean(dim=0)


FORMULAS = {
    "gem": gem,
    "conv1d(positions=3)": conv1d,
    "lip": lip,
    "adapool": adapool,
    "self_attention": self_attention,
    "seq2seq": seq2seq,
    "gcn(layers=2)": gcn,
    "sequential(layers=2, heads=2, positions=4)": sequential,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_formula(spec):
    hold_to_formula(spec, FORMULAS[spec])


@pytest.mark.parametrize("spec", ["conv1d", "lip", "self_attention", "gcn", "gem(p=1)"])
def test_what_starts_as_a_mean(spec):
    x_BND, mask_BN = random_sets([5, 5], 6)
    x_BND = normalize(x_BND.abs(), dim=-1)
    out_BD = AGGREGATORS.build(spec, 6)(x_BND, mask_BN).vectors
    torch.testing.assert_close(normalize(out_BD), normalize(x_BND.mean(dim=1)))


@pytest.mark.parametrize("spec", ["softpool", "lip", "adapool", "conv1d"])
def test_the_result_is_the_sum_with_these_weights(spec):
    x_BND, mask_BN = random_sets([5, 1, 9], 6)
    module = trained(spec, 6).float()
    vector_BD, _, weight_BND = module(x_BND, mask_BN)
    expected_BD = (weight_BND * x_BND).sum(dim=1)
    torch.testing.assert_close(vector_BD, expected_BD)


def test_gem_stays_finite_where_the_power_underflows():
    x_BND = torch.tensor([[[-1.0, 1e-5, 3e4], [-2.0, 2e-5, 1.0]]], requires_grad=True)
    module = AGGREGATORS.build("gem(p=30.0)", 3)
    out_BD = module(x_BND, torch.ones(1, 2, dtype=torch.bool)).vectors
    largest_D = torch.tensor([1e-6, 2e-5, 3e4])
    mean_D = torch.tensor([1.0, 0.5**30 / 2 + 0.5, 0.5])
    torch.testing.assert_close(out_BD[0], largest_D * mean_D ** (1 / 30), rtol=1e-5, atol=0)
    out_BD.sum().backward()
    assert x_BND.grad.isfinite().all()
    assert module.log_p.grad.isfinite()
    assert (x_BND.grad[..., 0] == 0).all(), "values below eps get no gradient"


def test_adapool_of_zeros():
    x_BND = torch.zeros(1, 3, 2, requires_grad=True)
    out_BD = AGGREGATORS.build("adapool", 2)(x_BND, torch.ones(1, 3, dtype=torch.bool)).vectors
    out_BD.sum().backward()
    assert (out_BD == 0).all()
    torch.testing.assert_close(x_BND.grad, torch.full((1, 3, 2), 1 / 3))


def test_gcn_is_as_its_inner_aggregator():
    assert AGGREGATORS.build("gcn(then=max)", 4).symmetric
    assert not AGGREGATORS.build("gcn(then=cls)", 4).symmetric
    x_BND, mask_BN = random_sets([5, 2], 4)
    kmax = AGGREGATORS.build("gcn(then=kmax(k=2))", 4)
    assert kmax(x_BND, mask_BN).weights.tolist() == [[0.5, 0.5, 0, 0, 0]] * 2
    assert AGGREGATORS.build("gcn(then=seq2seq)", 4)(x_BND, mask_BN).weights is None
    with pytest.raises(InputError, match=r"unknown aggregator 'maen'\. Did you mean 'mean'"):
        AGGREGATORS.build("gcn(then=maen)", 4)
