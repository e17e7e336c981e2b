"""A figure of the weights that an aggregator gives, by the functions that draw those of runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator, Context
from aggregators.observe import observe
from aggregators.random_sets import Inputs, random_sets
from infra.registry import AGGREGATORS
from pipelines.figures.coefficients import draw_coefficients

DIM = 128
RANKED_SIZES = [5, 12, 36]
"""Sizes of the random sets whose ranks are weighed."""
_NEAR_A, _NEAR_B = 6, 4
_LOOSE = 0.5  # how far elements of a group lie from its middle, as a part of its length
_LONG = 3.0

TOY_SETS = (
    "Eight random sets of twelve elements of width 128: in each those at places 1 to 6 are alike, those at 7 to 10 are "
    "alike, 11 stands alone, and so does 12, which is three times as long."
)
TOY_TEXT = "The text that it asks is like those at 7 to 10."
RANKED = "Three sets of random elements, of 5, 12 and 36."


def toy_sets(count: int = 8) -> Tensor:
    """Return the elements `(B, 12, D)` of the sets that `TOY_SETS` describes."""
    generator = torch.Generator().manual_seed(0)
    centre_B4D = torch.randn(count, 4, DIM, generator=generator)
    noise_BND = torch.randn(count, _NEAR_A + _NEAR_B + 2, DIM, generator=generator)
    group_N = torch.tensor([0] * _NEAR_A + [1] * _NEAR_B + [2, 3])
    x_BND = centre_B4D[:, group_N] + _LOOSE * noise_BND
    x_BND[:, -1] *= _LONG
    return x_BND


def _toy_inputs(module: Aggregator) -> Inputs:
    x_BND = toy_sets()
    x_BMD = x_BND[:, _NEAR_A : _NEAR_A + _NEAR_B]
    context = {
        "none": None,
        "set": Context(x_BMD, torch.ones(x_BMD.shape[:2], dtype=torch.bool)),
        "vector": Context(x_BMD.mean(dim=1)),
    }[module.context]
    return Inputs(x_BND=x_BND, mask_BN=torch.ones(x_BND.shape[:2], dtype=torch.bool), context=context)


def weights_figure(name: str) -> tuple[bytes, str] | None:
    """Draw what an aggregator weighs before it is trained, with its default parameters.

    Returns:
        The figure as a PNG, and what it shows in words; None where it has no weights that are worth a look.
    """
    torch.manual_seed(0)
    module = AGGREGATORS.build(name, DIM).eval()
    ranked = module.weights_over == "ranks"
    inputs = _toy_inputs(module)
    if ranked:
        x_BND, mask_BN = random_sets(RANKED_SIZES, DIM)
        inputs = Inputs(x_BND=x_BND, mask_BN=mask_BN)
    with torch.no_grad(), observe(nn.ModuleDict({"aggregator": module})) as (watched,):
        inputs.pool(module)
    drawn = draw_coefficients([watched], heading=f"{name}, before training")
    if drawn is None:
        return None
    shown = RANKED if ranked else TOY_SETS + f" {TOY_TEXT}" * (module.context != "none")
    return drawn, shown
