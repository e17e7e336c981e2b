"""Figures of the weights that aggregators give before training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Context
from polypool.aggregators.observe import observe
from polypool.aggregators.random_sets import Inputs, random_sets
from polypool.infra.registry import AGGREGATORS
from polypool.pipelines.figures.coefficients import draw_coefficients

DIM = 128
RANKED_SIZES = [5, 12, 36]
_ALIKE = slice(6, 10)  # the places of the second group of similar elements

EXAMPLE_SETS = (
    "Eight random sets of twelve elements of width 128: in each those at places 1 to 6 are alike, those at 7 to 10 are "
    "alike, 11 stands alone, and so does 12, which is three times as long."
)
EXAMPLE_TEXT = " The text is like the elements at 7 to 10."
RANKED_SETS = "Three sets of random elements, of 5, 12 and 36."


def example_sets(count: int = 8) -> Tensor:
    """Return the elements `(B, 12, D)` of the sets that `EXAMPLE_SETS` describes."""
    generator = torch.Generator().manual_seed(0)
    centre_B4D = torch.randn(count, 4, DIM, generator=generator)
    noise_BND = torch.randn(count, 12, DIM, generator=generator)
    x_BND = centre_B4D[:, [0] * 6 + [1] * 4 + [2, 3]] + 0.5 * noise_BND
    x_BND[:, -1] *= 3
    return x_BND


def _example_inputs(module: Aggregator) -> Inputs:
    x_BND = example_sets()
    x_BMD = x_BND[:, _ALIKE]
    context = {
        "none": None,
        "set": Context(x_BMD, torch.ones(x_BMD.shape[:2], dtype=torch.bool)),
        "vector": Context(x_BMD.mean(dim=1)),
    }[module.context]
    return Inputs(x_BND=x_BND, mask_BN=torch.ones(x_BND.shape[:2], dtype=torch.bool), context=context)


def weights_figure(name: str) -> tuple[bytes, str] | None:
    """Return a PNG of an aggregator's weights with its default parameters and what it shows; None without weights."""
    torch.manual_seed(0)
    module = AGGREGATORS.build(name, DIM).eval()
    if module.weights_over == "ranks":
        x_BND, mask_BN = random_sets(RANKED_SIZES, DIM)
        inputs, shown = Inputs(x_BND=x_BND, mask_BN=mask_BN), RANKED_SETS
    else:
        inputs = _example_inputs(module)
        shown = EXAMPLE_SETS + (EXAMPLE_TEXT if module.context != "none" else "")
    with torch.no_grad(), observe(nn.ModuleDict({"aggregator": module})) as (watched,):
        inputs.pool(module)
    drawn = draw_coefficients([watched], heading=f"{name}, before training")
    return (drawn, shown) if drawn else None
