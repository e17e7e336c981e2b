"""Aggregators that weigh ranks in slices against their authors' numbers."""

import pytest
from recorded import Row, hold_to_recorded, turned

PSWE = {"slice.weight": "theta.weight_v", "reference_MD": "reference", "weight_MD": turned("weight")}
RANKS = [
    Row(case="fsw/even", spec="fsw", names={"slice.weight": "slice_vectors"}),
    Row(case="pswe/fewer", spec="pswe(points=4)", names=PSWE),
    Row(case="pswe/as_many", spec="pswe(points=7)", names=PSWE),
    Row(case="pswe/more", spec="pswe(points=12)", names=PSWE),
    Row(case="pswe/turned", spec="pswe(points=4)", names=PSWE),
]


@pytest.mark.parametrize("row", RANKS, ids=str)
def test_the_recorded_numbers(golden, row):
    hold_to_recorded(golden / "ranks", row)
