"""Aggregators of multiple instance learning: loops over their formulas, and what is masked in training."""

import math

import pytest
import torch
from explicit import Weights, hold_to_formula, linear, mixed, norm, softmax, trained
from torch import Tensor

from polypool.aggregators.random_sets import random_sets
from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.registry import AGGREGATORS


def dsmil(x_ND: Tensor, p: Weights) -> Tensor:
    query = [linear(p, "query.2", linear(p, "query.0", x_D).relu()).tanh() for x_D in x_ND]
    vectors = []
    for w_D in p["score.weight"]:
        best = max(range(len(x_ND)), key=lambda n: (w_D @ x_ND[n]).item())
        shares = softmax([query[best] @ other_H / math.sqrt(5) for other_H in query])
        vectors.append((mixed(shares, x_ND) + (w_D @ x_ND[best]) / (w_D @ w_D) * w_D) / 2)
    return torch.stack(vectors)


def acmil(x_ND: Tensor, p: Weights) -> Tensor:
    inner = [linear(p, "content", x_D).tanh() * linear(p, "gate", x_D).sigmoid() for x_D in x_ND]
    branches = [mixed(softmax([w_H @ y_H for y_H in inner]), x_ND) for w_H in p["score.weight"]]
    return sum(branches) / len(branches)


def layer(x: list[Tensor], p: Weights, name: str) -> list[Tensor]:
    """Attention in two heads, and to each its neighbours' values at most 16 away."""
    maps = [(p[f"{name}.query_key_value.weight"] @ norm(p, f"{name}.norm", x_D)).chunk(3) for x_D in x]
    out = []
    for i, x_D in enumerate(x):
        heads = []
        for head, near in enumerate(p[f"{name}.near.weight"][:, 0, :, 0]):
            own = slice(3 * head, 3 * head + 3)
            shares = softmax([maps[i][0][own] @ key[own] / math.sqrt(3) for _, key, _ in maps])
            values = [value[own] for *_, value in maps]
            around = [near[j - i + 16] * value for j, value in enumerate(values) if abs(j - i) <= 16]
            heads.append(mixed(shares, values) + sum(around))
        out.append(x_D + linear(p, f"{name}.out", torch.cat(heads)))
    return out


def transmil(x_ND: Tensor, p: Weights) -> Tensor:
    side = next(n for n in range(len(x_ND) + 1) if n * n >= len(x_ND))
    token_D, *x = layer([p["token_D"], *x_ND, *x_ND[: side * side - len(x_ND)]], p, "first")
    moved = []
    for place, x_D in enumerate(x):
        for name, reach in (("wide", 3), ("middle", 2), ("narrow", 1)):
            x_D = x_D + p[f"places.{name}.bias"]
            for other, y_D in enumerate(x):
                down, right = other // side - place // side, other % side - place % side
                if max(abs(down), abs(right)) <= reach:
                    x_D = x_D + p[f"places.{name}.weight"][:, 0, down + reach, right + reach] * y_D
        moved.append(x_D)
    return norm(p, "norm", layer([token_D, *moved], p, "second")[0])


FORMULAS = {
    "dsmil(k=2, hidden=5)": dsmil,
    "acmil(k=3, hidden=4)": acmil,
    "transmil(heads=2)": transmil,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_formula(spec):
    hold_to_formula(spec, FORMULAS[spec])


def test_a_classifier_along_the_score_gives_the_mean_of_both_streams():
    module = trained("dsmil", 6).float()
    x_BND, mask_BN = random_sets([7], 6)
    vectors, _, weights = module(x_BND, mask_BN)
    score_N = module.score(x_BND)[0, :, 0]
    torch.testing.assert_close(module.score(vectors)[0, 0], (score_N.max() + weights[0, 0] @ score_N) / 2)


def one_branch(**parameters: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """Return an untrained branch, sets of 9 and 2, and every element's weight in evaluation."""
    module = AGGREGATORS.build("acmil", 6, k=1, **parameters)
    x_BND, mask_BN = random_sets([9, 2], 6)
    return module, x_BND, module.eval()(x_BND, mask_BN).weights


def test_only_the_best_are_masked_as_often_as_drop_says():
    module, x_BND, weight_BN = one_branch(top=4, drop=0.3)
    x_BND, weight_N = x_BND[:1].expand(2000, -1, -1), weight_BN[0]
    masked_SN = module.train()(x_BND, torch.ones(2000, 9, dtype=torch.bool)).weights == 0
    often_N = masked_SN.float().mean(dim=0)
    best = weight_N.topk(4).indices
    torch.testing.assert_close(often_N[best], torch.full((4,), 0.3), atol=0.05, rtol=0)
    assert often_N.sum() == pytest.approx(often_N[best].sum())


def test_a_set_never_loses_all_its_elements():
    module, x_BND, weight_BN = one_branch(top=5, drop=1.0)
    mask_BN = torch.arange(9) < torch.tensor([[9], [2]])
    vectors, _, trained_BN = module.train()(x_BND, mask_BN)
    torch.testing.assert_close(trained_BN[1], weight_BN[1])  # both of its two are among the best
    assert ((trained_BN[0] > 0) == (weight_BN[0] < weight_BN[0].topk(5).values.min())).all()
    assert vectors.isfinite().all()


def test_what_is_masked_depends_on_the_sample_and_not_on_its_padding():
    module, x_BND, _ = one_branch(top=5, drop=0.5)
    mask_BN = torch.arange(9) < torch.tensor([[9], [2]])
    module.train()
    with drawn(Draws(seed=0, step=0, first=0, samples=2)):
        together = module(x_BND, mask_BN).weights
    with drawn(Draws(seed=0, step=0, first=1, samples=1)):
        alone = module(x_BND[1:, :2], mask_BN[1:, :2]).weights
    torch.testing.assert_close(together[1:, :2], alone)


def test_elements_that_fill_the_square_once_more_have_both_weights():
    module = trained("transmil(heads=2)", 6).float()
    x_BND, mask_BN = random_sets([5, 25, 1], 6)
    weight_BN = module(x_BND, mask_BN).weights
    module.second.query_key_value.weight.data[:12] = 0  # all places weigh alike, the token among them
    alike_BN = module(x_BND, mask_BN).weights
    assert (weight_BN.sum(dim=1) < 1).all()
    torch.testing.assert_close(alike_BN[0, :6] * 10, torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 0.0]))
    torch.testing.assert_close(alike_BN[1] * 26, torch.ones(25))
    torch.testing.assert_close(alike_BN[2, :1], torch.tensor([0.5]))
