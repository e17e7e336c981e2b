"""A Gaussian of each set against its formula, and in what precision it is made."""

import pytest
import torch
from explicit import hold_to_formula, trained
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.contract import check_aggregator
from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.sets.probabilistic import Probabilistic
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


def explicit(module: Probabilistic, x_ND: Tensor) -> Tensor:
    """The mean of the elements, and of each channel of their maps the values in order, weighed by rank."""
    mapped = [module.linear.weight @ x_D + module.linear.bias for x_D in x_ND]
    weight_N = module.pool.size_weights(torch.tensor([len(x_ND)]))[0]
    log_variance = []
    for channel in range(len(mapped[0])):
        ordered = sorted((x_D[channel] for x_D in mapped), key=lambda x: x.item(), reverse=True)
        log_variance.append(sum(w * value for w, value in zip(weight_N, ordered, strict=True)))
    return torch.stack([sum(x_ND) / len(x_ND), torch.stack(log_variance)])


def test_the_mean_and_the_log_variance_are_those_of_the_formula_with_every_gradient():
    module = trained("probabilistic(mean=mean)", 6)
    hold_to_formula(module, lambda x_ND, _: explicit(module, x_ND))


def test_what_makes_the_mean_makes_it_as_it_does_alone():
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


def test_all_channels_begin_near_the_start_that_is_told():
    torch.manual_seed(0)
    x_BND, mask_BN = random_sets([6] * 32, 64)
    for start in (-4.0, 0.0, -10.0):
        log_variance_BD = Probabilistic(64, start=start)(x_BND, mask_BN).vectors[:, 1]
        assert log_variance_BD.mean().item() == pytest.approx(start, abs=0.7)
        assert (log_variance_BD < 0).any(), "nothing keeps a log-variance above zero"


def test_the_map_starts_from_xaviers_uniform_weights():
    torch.manual_seed(0)
    weight = Probabilistic(200).linear.weight.detach()
    bound = (6 / 400) ** 0.5
    assert 0.99 * bound < weight.abs().max() <= bound


def test_one_that_hands_on_to_it_makes_what_it_makes():
    module = AGGREGATORS.build("gcn(then=probabilistic)", 8)
    assert (module.makes, module.num_embeddings) == ("distribution", 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_the_log_variance_is_in_single_precision(dtype):
    torch.manual_seed(0)
    module = AGGREGATORS.build("probabilistic", 16).eval()
    x_BND, mask_BN = random_sets([9, 4], 16)
    expected = module(x_BND, mask_BN).vectors
    with torch.autocast("cpu", dtype):
        found = module(x_BND, mask_BN).vectors
        in_half = module(x_BND.masked_fill(~mask_BN[..., None], 0.0).to(dtype), mask_BN).vectors
    assert found.dtype == in_half.dtype == torch.float32
    torch.testing.assert_close(found[:, 1], expected[:, 1], atol=1e-5, rtol=1e-6)


class Three(Aggregator):
    """Says that it makes a distribution, and makes three vectors."""

    num_embeddings, makes = 3, "distribution"

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        mean_BD = x_BND.masked_fill(~mask_BN[..., None], 0.0).sum(dim=1) / mask_BN.sum(dim=1, keepdim=True)
        return Pooled(mean_BD[:, None].expand(-1, 3, -1))


def test_a_distribution_of_three_vectors_breaks_the_contract():
    with pytest.raises(AssertionError, match="a distribution has num_embeddings = 2, not 3"):
        check_aggregator(Three(), 4)
    Three.makes = "gaussian"
    with pytest.raises(AssertionError, match="makes is 'gaussian'"):
        check_aggregator(Three(), 4)


@pytest.mark.parametrize(
    "mean", ["slots(k=2)", "late", "score_attention", "xpool", "pie(k=1)", "probabilistic"]
)
def test_a_mean_that_is_not_one_vector_of_a_set_alone_is_refused(mean):
    with pytest.raises(InputError, match="does not make one vector of a set alone"):
        AGGREGATORS.build(f"probabilistic(mean={mean})", 16)


@pytest.mark.parametrize("spec", ["pie(global_feature=probabilistic)", "salad(global_feature=probabilistic)"])
def test_a_distribution_is_no_global_feature(spec):
    with pytest.raises(InputError):
        AGGREGATORS.build(spec, 16)
