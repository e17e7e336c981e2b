"""The page on compilation, export, vmap and autocast: its table is what happens with every aggregator."""

import re

import pytest
import torch

from docs.generate.transforms import NO, PAGE, WHOLE, WHY, WIDTH, outcomes
from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.registry import AGGREGATORS

ROWS = {
    name: tuple(cell.strip() for cell in cells.split("|"))
    for name, cells in re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text(), re.M)
}
QUICK = ("mean", "gpo", "late", "salad", "seq_lstm", "text_topk")


def hold(name: str) -> None:
    expected = ROWS.get(name, (*WHOLE, ""))
    found = (*outcomes(AGGREGATORS.build(name, WIDTH)), WHY.get(name, ""))
    assert found == expected, f"{name}: run `python -m docs.generate.transforms`"


def test_rows_are_of_aggregators_and_say_why():
    assert {*ROWS} <= {*AGGREGATORS.built_in()}
    assert {*ROWS} == {*WHY}
    assert all(why for *_, why in ROWS.values())


@pytest.mark.parametrize("name", QUICK)
def test_the_table_is_what_happens(name):
    hold(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*AGGREGATORS.built_in()} - {*QUICK}))
def test_the_table_is_what_happens_with_the_rest(name):
    hold(name)


@pytest.mark.parametrize("spec", ["late(factor=2)", "late(budget=3)", "gpo(decoder=mlp)"])
def test_other_parameters_compile_and_export_too(spec):
    compiled, exported, *others = outcomes(AGGREGATORS.build(spec, WIDTH))
    assert exported != NO
    assert (compiled, *others) == ("yes", "yes", "yes")


class LooksAtValues(Aggregator):
    """Pools in another way where nothing is padded, which no graph knows."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x_BND: torch.Tensor, mask_BN: torch.Tensor) -> Pooled:
        if mask_BN.all():
            return Pooled(x_BND.sum(dim=1))
        return Pooled(x_BND.masked_fill(~mask_BN[..., None], 0.0).sum(dim=1))


def test_what_looks_at_values_is_found():
    assert outcomes(LooksAtValues(WIDTH))[:3] == (NO, NO, NO)
