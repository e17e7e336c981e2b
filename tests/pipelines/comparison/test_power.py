"""What numbers of seeds can show, against tests of drawn data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from records import blocks_of, run

from polypool.infra.text_tables import ABSENT
from polypool.pipelines.comparison.statistics.intervals import difference
from polypool.pipelines.comparison.statistics.power import MOST, POWER, Planning, planning
from polypool.pipelines.comparison.statistics.significance import Judged
from polypool.pipelines.comparison.tables.differences import needed, shown_by_seeds

PLAN = Planning(seeds=4.0, queries=1.0, units=60, runs=3, pairs=45)


def share_found(true: float, *, seeds: int, level: float = 0.05, times: int = 1200) -> float:
    """Return how often the test finds a true difference between rows of the variances of PLAN."""
    rng, found = np.random.default_rng(seeds), 0
    for _ in range(times):
        one, other = 2.0 * rng.normal(size=(2, seeds, 1)) + np.zeros(60)
        estimate = difference(one + true + np.sqrt(60) * rng.normal(size=60), other, same_seeds=True)
        found += abs(estimate.value) > estimate.half_width(level)
    return found / times


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_smallest_difference_is_found_in_80_of_100_repetitions(seeds: int) -> None:
    smallest = PLAN.smallest(seeds=seeds)
    assert PLAN.power(smallest, seeds=seeds) == pytest.approx(POWER, abs=1e-4)
    assert share_found(smallest, seeds=seeds) == pytest.approx(POWER, abs=0.035)


def test_power_is_that_of_the_test_for_other_differences_and_levels_too() -> None:
    for true, tests in ((3.0, 1), (6.0, 10), (0.0, 1)):
        found = share_found(true, seeds=4, level=0.05 / tests)
        assert PLAN.power(true, seeds=4, tests=tests) == pytest.approx(found, abs=0.04)


def test_more_seeds_show_less_and_never_less_than_the_queries_leave_open() -> None:
    smallest = [PLAN.smallest(seeds=seeds) for seeds in (2, 3, 5, 9, 20, 100, MOST)]
    assert smallest == sorted(smallest, reverse=True)
    assert smallest[-1] == pytest.approx(PLAN.floor(), rel=0.02)
    assert PLAN.floor() == pytest.approx(
        (2.001 + 0.8416) * 1.0, abs=1e-3
    )  # t of 59 degrees of freedom, and normal
    assert PLAN.smallest(seeds=5, tests=45) > PLAN.smallest(seeds=5)


def test_seeds_needed_are_the_fewest_that_show_a_difference() -> None:
    for wished in (3.2, 4.0, 7.0):
        seeds = PLAN.needed(wished)
        assert PLAN.smallest(seeds=seeds) <= wished < PLAN.smallest(seeds=seeds - 1)
    assert PLAN.needed(1000.0) == 2
    assert PLAN.needed(2.8) is None
    assert PLAN.needed(4.0, tests=45) is None
    only_seeds = replace(PLAN, queries=0.0)
    assert only_seeds.floor() == 0
    assert only_seeds.smallest(seeds=only_seeds.needed(0.5)) <= 0.5
    nothing = replace(PLAN, seeds=0.0)
    assert nothing.smallest(seeds=2) == pytest.approx(nothing.floor(), rel=0.02)


def test_variances_are_the_means_of_the_table() -> None:
    rows = [np.array([[0.0], [2.0]]) + np.zeros(20), np.array([[0.0], [0.0], [3.0]]) + np.zeros(20)]
    made = planning([*rows, np.zeros((1, 20))], queries=[1.0, 2.0, 6.0])
    assert (made.seeds, made.queries) == (pytest.approx((2.0 + 6.0) / 3), 3.0)
    assert (made.units, made.runs, made.pairs) == (20, 1, 3)
    assert planning([np.zeros((1, 20))] * 2, queries=[1.0]) is None


def group(plan: Planning | None):
    (made,) = blocks_of(*(run(name, seed, 50.0 + seed) for name in ("a", "b") for seed in range(3)))
    judged = Judged(units="60 images", labels=("a", "b"), tests=45, intervals={}, pairs={}, planning=plan)
    return replace(made, judged=judged)


def test_the_table_begins_with_the_seeds_at_hand_and_ends_with_any_number() -> None:
    table = shown_by_seeds(group(PLAN))
    assert [row[0] for row in table.rows] == ["3 (now)", "5", "10", "20", "any number"]
    assert table.header == ("seeds", "a pair alone", "one of 45 pairs")
    assert table.rows[0][1:] == (f"{PLAN.smallest(seeds=3):.1f}", f"{PLAN.smallest(seeds=3, tests=45):.1f}")
    assert "2.0 of a run over seeds, 1.0 of a difference over queries" in table.legend[0]
    huge = shown_by_seeds(group(replace(PLAN, seeds=1e6, runs=2)))
    assert huge.rows[0][1:] == (ABSENT, ABSENT), "more than lies between chance and the best possible"
    one = shown_by_seeds(group(replace(PLAN, pairs=1)))
    assert one.header == ("seeds", "a pair alone")
    assert shown_by_seeds(group(None)) is None


def test_seeds_still_needed_are_said() -> None:
    start = "image_text · coco_mini · whole: a difference of"
    alone, among = PLAN.needed(5.0), PLAN.needed(5.0, tests=45)
    assert needed(group(PLAN), 5.0) == (
        f"{start} 5 needs {alone} seeds a row, {alone - 3} more; "
        f"as one of 45 pairs {among} seeds a row, {among - 3} more"
    )
    assert needed(group(PLAN), 60.0).endswith("which there are")
    assert needed(group(PLAN), 1.0).endswith("more queries rather than more seeds")
    assert "with one seed a row the number of seeds is unknown" in needed(group(None), 1.0)
    assert needed(replace(group(PLAN), judged=None), 1.0) == ""
