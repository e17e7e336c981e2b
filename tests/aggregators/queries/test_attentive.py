"""Poolings by transformers' blocks: loops over their formulas."""

import math

import pytest
import torch
from explicit import Weights, heads_of, hold_to_formula, linear
from torch import Tensor

from polypool.aggregators.relations.set_transformer_pp import SetNorm


def set_norm(p: Weights, name: str, x: list[Tensor]) -> list[Tensor]:
    numbers = torch.cat(x)
    centre = sum(numbers) / len(numbers)
    deviation = (sum((numbers - centre) ** 2) / len(numbers) + 1e-5).sqrt()
    return [(x_D - centre) / deviation * p[f"{name}.weight"] + p[f"{name}.bias"] for x_D in x]


def block(queries: list[Tensor], x: list[Tensor], p: Weights, name: str, *, normed: str = "") -> list[Tensor]:
    """Return a block; `normed` names what has a set norm, of q(ueries), k(eys and values) and r(ow)."""
    asked = set_norm(p, f"{name}.norm_query", queries) if "q" in normed else queries
    x = set_norm(p, f"{name}.norm", x) if "k" in normed else x
    got = []
    for query_D, asked_D in zip(queries, asked, strict=True):
        scale = 1 / math.sqrt(len(query_D))
        got.append(query_D + heads_of(linear(p, f"{name}.query", asked_D), x, p, f"{name}.", 2, scale))
    row = set_norm(p, f"{name}.norm_row", got) if "r" in normed else got
    return [g + linear(p, f"{name}.row", r_D).relu() for g, r_D in zip(got, row, strict=True)]


def set_transformer_pp(x_ND: Tensor, p: Weights) -> Tensor:
    x = list(x_ND)
    for i in range(2):
        met = block(list(p[f"induced.{i}.point_1PD"][0]), x, p, f"induced.{i}.gather", normed="kr")
        x = block(x, met, p, f"induced.{i}.spread", normed="qkr")
    seeds = block(list(p["seed_1KD"][0]), set_norm(p, "norm", x), p, "pool")
    return torch.stack([linear(p, "out", y_D) for y_D in block(seeds, seeds, p, "among")])


def self_query(x_ND: Tensor, p: Weights) -> Tensor:
    mean_D = sum(x_ND) / len(x_ND)
    query_D = linear(p, "query", mean_D)
    return linear(p, "out", heads_of(query_D, list(x_ND), p, "", 2, 1 / math.sqrt(len(mean_D))))


def cls_query(x_ND: Tensor, p: Weights) -> Tensor:
    query_D = linear(p, "query", x_ND[0])
    got_D = heads_of(query_D, list(x_ND), p, "", 2, 1 / math.sqrt(len(query_D)))
    return x_ND[0] + linear(p, "out", got_D)


FORMULAS = {
    "set_transformer_pp(k=2, points=3, heads=2)": set_transformer_pp,
    "self_query(heads=2)": self_query,
    "self_query(query=cls, heads=2)": cls_query,
}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_formula(spec):
    hold_to_formula(spec, FORMULAS[spec])


def test_a_set_norm_keeps_how_elements_differ_in_length():
    x_BND = torch.tensor([[[3.0, -3.0], [1.0, -1.0], [9.0, 9.0]]])
    normal_ND = SetNorm(2)(x_BND, torch.tensor([[True, True, False]]))[0]
    torch.testing.assert_close(normal_ND[0], 3 * normal_ND[1])
    torch.testing.assert_close(normal_ND[:2].square().mean(), torch.tensor(1.0))
