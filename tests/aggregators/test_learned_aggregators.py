"""Initial values and edge cases of aggregators with learned weights."""

import pytest
import torch
from explicit import hold_to_formula
from torch import Tensor, nn
from torch.nn.functional import normalize

from polypool.aggregators.random_sets import random_sets
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


def test_conv1d_has_a_weight_per_position_and_channel():
    def conv1d(x_ND: Tensor, p: dict[str, Tensor]) -> Tensor:
        return sum(x_D * p["kernel_PD"][min(n, 2)] for n, x_D in enumerate(x_ND))

    hold_to_formula("conv1d(positions=3)", conv1d)


@pytest.mark.parametrize("spec", ["conv1d", "lip", "self_attention", "gcn", "gem(p=1)"])
def test_untrained_aggregators_give_the_mean(spec):
    x_BND, mask_BN = random_sets([5, 5], 6)
    x_BND = normalize(x_BND.abs(), dim=-1)
    out_BD = AGGREGATORS.build(spec, 6)(x_BND, mask_BN).vectors
    torch.testing.assert_close(normalize(out_BD), normalize(x_BND.mean(dim=1)))


DEVIATIONS = {
    "map": lambda inputs, outputs: (2 / (inputs + outputs)) ** 0.5,
    "pie(k=64)": lambda inputs, outputs: (2 / (inputs + outputs)) ** 0.5,
    "nextvlad": lambda inputs, outputs: (2 / inputs) ** 0.5,
    "cait": lambda inputs, outputs: 0.02,
    "qformer": lambda inputs, outputs: 0.02,
}


@pytest.mark.parametrize("spec", DEVIATIONS)
def test_linear_maps_start_at_published_deviation_without_bias(spec):
    torch.manual_seed(0)
    for linear in AGGREGATORS.build(spec, 64).modules():
        if isinstance(linear, nn.Linear):
            expected = DEVIATIONS[spec](linear.in_features, linear.out_features)
            assert linear.weight.detach().std().item() == pytest.approx(expected, rel=0.1)
            assert linear.bias is None or linear.bias.abs().max() < 1e-5


def test_xpool_maps_start_as_identity():
    module, x_BND = AGGREGATORS.build("xpool", 6).eval(), torch.randn(1, 1, 6)
    for linear in (part for part in module.modules() if isinstance(part, nn.Linear)):
        assert torch.equal(linear(x_BND), x_BND)


def test_gem_stays_finite_on_underflow():
    x_BND = torch.tensor([[[-1.0, 1e-5, 3e4], [-2.0, 2e-5, 1.0]]], requires_grad=True)
    module = AGGREGATORS.build("gem(p=30.0)", 3)
    out_BD = module(x_BND, torch.ones(1, 2, dtype=torch.bool)).vectors
    largest_D = torch.tensor([1e-6, 2e-5, 3e4])
    mean_D = torch.tensor([1.0, 0.5**30 / 2 + 0.5, 0.5])
    torch.testing.assert_close(out_BD[0], largest_D * mean_D ** (1 / 30), rtol=1e-5, atol=0)
    out_BD.sum().backward()
    assert x_BND.grad.isfinite().all()
    assert module.log_p.grad.isfinite()
    assert (x_BND.grad[..., 0] == 0).all(), "values below eps must get no gradient"


def test_gcn_takes_properties_of_inner_aggregator():
    assert AGGREGATORS.build("gcn(then=max)", 4).symmetric
    assert not AGGREGATORS.build("gcn(then=cls)", 4).symmetric
    x_BND, mask_BN = random_sets([5, 2], 4)
    kmax = AGGREGATORS.build("gcn(then=kmax(k=2))", 4)
    assert kmax(x_BND, mask_BN).weights.tolist() == [[0.5, 0.5, 0, 0, 0]] * 2
    assert AGGREGATORS.build("gcn(then=seq2seq)", 4)(x_BND, mask_BN).weights is None
    with pytest.raises(InputError, match=r"unknown aggregator 'maen'\. Did you mean 'mean'"):
        AGGREGATORS.build("gcn(then=maen)", 4)
