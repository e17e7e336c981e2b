"""Exponents, and what a run costs `compare` among many."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.comparing import growth
from benchmarks.scaling import exponents


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_a_power_of_the_size_is_found(power):
    sizes = (10, 40, 160)
    second_RS = np.array([[3.0], [5.0]]) * np.array(sizes) ** power
    assert exponents.slopes(second_RS, sizes) == pytest.approx([power, power], abs=1e-9)
    assert exponents.slopes(1 / second_RS, sizes) == pytest.approx([0.0, 0.0], abs=1e-9)


@pytest.mark.parametrize(
    ("expected", "power", "ratio", "misses"),
    [(0, 0.2, 0.2, False), (0, 0.3, 0.3, True), (2, 2.2, 1.1, False), (2, 2.3, 1.15, True)],
)
def test_an_exponent_misses_where_it_is_steeper_than_expected(expected, power, ratio, misses, monkeypatch):
    times = iter([1.0, 10.0**power] * 3)
    monkeypatch.setattr(exponents, "_repeated", lambda work, least: lambda: next(times))
    works = [print, print]
    row = exponents._row("a", "b", (10, 100), expected, works, size=exponents.ExponentSize())
    assert row.ours == pytest.approx(power)
    assert row.ratio == pytest.approx(ratio)
    assert row.misses() is misses


def test_a_run_among_many_is_compared_with_one_among_few(monkeypatch):
    spent = 0.0

    def compare(home, uri):
        nonlocal spent
        spent += {"2000": 2.0, "20000": 60.0}[home.name]

    monkeypatch.setattr(growth, "make_experiment", lambda home, **_: "")
    monkeypatch.setattr(growth, "compare", compare)
    monkeypatch.setattr(growth, "of_children", lambda: spent)
    (row,) = growth.comparing_many()
    assert (row.ours, row.reference, row.ratio) == pytest.approx((3.0, 1.0, 3.0))
    assert row.misses()
