"""Aggregators that weigh ranks in slices of the space: loops over their definitions."""

import math

import pytest
import torch
from explicit import Weights, hold_to_formula, unit
from torch import Tensor

from polypool.infra.registry import AGGREGATORS


def fsw(x_ND: Tensor, p: Weights) -> Tensor:
    """The integral of each step times the cosine, by its antiderivative."""
    out, dim = [], x_ND.shape[1]
    for d, w_D in enumerate(p["slice.weight"]):
        f = (d + 0.5) / (dim - d - 0.5)
        total = 0.0
        for n, value in enumerate((x_ND @ w_D).sort().values):
            ends = [math.sin(2 * math.pi * f * (n + i) / len(x_ND)) / (2 * math.pi * f) for i in (0, 1)]
            total = total + value * (ends[1] - ends[0])
        out.append(2 * (1 + f) * total)
    return torch.stack(out)


def pswe(x_ND: Tensor, p: Weights) -> Tensor:
    """The quantile that each reference point gets, one slice and point at a time."""
    out, size = [], len(x_ND)
    for w_D, reference_M, weight_M in zip(
        p["slice.weight"], p["reference_MD"].T, p["weight_MD"].T, strict=True
    ):
        values = (x_ND @ unit(w_D)).sort().values
        total = 0.0
        for reference, weight in zip(reference_M, weight_M, strict=True):
            rank = 1 + sum(other.item() < reference.item() for other in reference_M)
            place = rank / (len(reference_M) + 1) * (size + 1)
            low = min(max(math.floor(place), 1), max(size - 1, 1))
            slope = values[low] - values[low - 1] if size > 1 else 0.0
            total = total + weight * (reference - values[low - 1] - slope * (place - low))
        out.append(total)
    return torch.stack(out)


FORMULAS = {"fsw": fsw, "pswe(points=1)": pswe, "pswe(points=4)": pswe, "pswe(points=8)": pswe}


@pytest.mark.parametrize("spec", FORMULAS)
def test_values_and_gradients_follow_the_definition(spec):
    hold_to_formula(spec, FORMULAS[spec])


def test_repeated_alike_elements_leave_the_quantiles_where_they_were():
    module, x_BND = AGGREGATORS.build("fsw", 6), torch.randn(1, 5, 6)
    once, often = (
        module(x, torch.ones(x.shape[:2], dtype=torch.bool)).vectors for x in (x_BND, x_BND.repeat(1, 3, 1))
    )
    torch.testing.assert_close(once, often)
