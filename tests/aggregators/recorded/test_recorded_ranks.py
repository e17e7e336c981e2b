"""Sliced-Wasserstein aggregators against recorded outputs of the authors' code."""

import pytest
import torch
from recorded import Row, hold_to_recorded, transposed

from polypool.infra.registry import AGGREGATORS

PSWE = {"slice.weight": "theta.weight_v", "reference_MD": "reference", "weight_MD": transposed("weight")}
RANKS = [
    Row(case="fsw/even", spec="fsw", names={"slice.weight": "slice_vectors"}),
    Row(case="pswe/fewer", spec="pswe(points=4)", names=PSWE),
    Row(case="pswe/as_many", spec="pswe(points=7)", names=PSWE),
    Row(case="pswe/more", spec="pswe(points=12)", names=PSWE),
    Row(case="pswe/turned", spec="pswe(points=4)", names=PSWE),
]


@pytest.mark.parametrize("row", RANKS, ids=str)
def test_sliced_wasserstein_matches_recorded_outputs(golden, row):
    hold_to_recorded(golden / "ranks", row)


def test_fsw_is_invariant_to_repeating_the_set():
    module, x_BND = AGGREGATORS.build("fsw", 6), torch.randn(1, 5, 6)
    once, often = (
        module(x, torch.ones(x.shape[:2], dtype=torch.bool)).vectors for x in (x_BND, x_BND.repeat(1, 3, 1))
    )
    torch.testing.assert_close(once, often)
