"""What changed since the table of docs/speed.md."""

from __future__ import annotations

import math

import pytest

from benchmarks.committed import MACHINE, PAGE, Committed, Kept
from benchmarks.measure import Measurement
from benchmarks.report import BenchReport
from polypool.infra.text_tables import ABSENT

HERE = "2 cores of X (AVX2), torch 2.13.0"


def row(name: str, ratio: float, spread: tuple[float, float] | None = None, **changes) -> Measurement:
    base = {"measured": "sets of 36", "unit": "ms", "ours": 2.0, "reference": 3.0}
    return Measurement(name=name, ratio=ratio, spread=spread, **(base | changes))


def committed(tmp_path, *rows: Measurement, machine: str = HERE) -> Committed:
    """Return the table of a page that has these rows as `--markdown` prints them."""
    path = tmp_path / "speed.md"
    path.write_text(
        f"# Speed\n\nA text.\n\n{MACHINE}{machine}\n\n"
        + BenchReport(scale="full", rows={"all": list(rows)}).markdown()
    )
    return Committed.read(path)


@pytest.mark.parametrize(
    ("shown", "low", "high"),
    [
        ("2.00x (1.50-3.00)", 1.495, 3.005),
        ("2.00x", 1.795, 2.205),
        ("5171.86x (4,760.82-6556.43)", 4760.815, 6556.435),
        ("41.0% (37.5-41.8)", 0.3745, 0.4185),
        ("10.0%", 0.0895, 0.1105),
    ],
)
def test_a_ratio_has_the_noise_of_its_spread_and_rounding(shown, low, high):
    kept = Kept.of("", shown)
    assert (kept.low, kept.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("shown", [ABSENT, "", "nanx"])
def test_what_is_no_ratio_is_not_measured_yet(shown):
    assert Kept.of("", shown) is None


@pytest.mark.parametrize(
    ("before", "after", "goal", "said"),
    [
        ((2.0, (1.5, 2.5)), (3.0, (2.4, 3.5)), "at least", ""),
        ((2.0, (1.5, 2.5)), (3.0, (2.6, 3.5)), "at least", "better"),
        ((2.0, (1.5, 2.5)), (3.0, (2.6, 3.5)), "at most", "worse"),
        ((2.0, (1.5, 2.5)), (1.0, (0.9, 1.4)), "at least", "worse"),
        ((2.0, (1.5, 2.5)), (1.0, (0.9, 1.4)), "at most", "better"),
        ((2.0, None), (2.3, None), "at most", ""),
        ((2.0, None), (2.6, None), "at most", "worse"),
        ((0.04, None), (0.05, None), "at most", ""),
        ((2.0, (1.5, 2.5)), (math.nan, None), "at most", "worse"),
    ],
)
def test_a_row_changed_where_the_spreads_have_nothing_in_common(tmp_path, before, after, goal, said):
    changes = committed(tmp_path, row("a", *before, goal=goal)).changes(
        [row("a", *after, goal=goal)], machine=HERE
    )
    first, *lines = changes.splitlines()
    assert first == f"changed since the table of docs/speed.md: {bool(said):d} of 1 rows"
    assert [line.rpartition(", ")[2] for line in lines] == ([said] if said else [])


def test_a_part_of_a_whole_is_compared_in_percent(tmp_path):
    before, after = (row("a", ratio, (ratio, ratio), percent=True) for ratio in (0.41, 0.31))
    assert "* a: 41.0% (41.0-41.0) -> 31.0% (31.0-31.0), worse" in committed(tmp_path, before).changes(
        [after], machine=HERE
    )


def test_another_machine_is_named_and_compared_all_the_same(tmp_path):
    changes = committed(tmp_path, row("a", 2.0), machine="4 cores of Y").changes(
        [row("a", 9.0)], machine=HERE
    )
    assert f"another machine, 4 cores of Y; this is {HERE}." in " ".join(changes.split())
    assert "a: 2.00x -> 9.00x, better" in changes
    assert "another" not in committed(tmp_path, row("a", 2.0)).changes([row("a", 9.0)], machine=HERE)


def test_what_measures_something_else_is_not_compared(tmp_path):
    rows = [
        row("a", 9.0, measured="sets of 72"),
        row("new", 9.0),
        row("detail", 9.0, detail=True),
        row("b", 2.0),
    ]
    changes = committed(tmp_path, row("a", 2.0), row("b", 2.0)).changes(rows, machine=HERE)
    assert changes.splitlines() == [
        "changed since the table of docs/speed.md: 0 of 1 rows",
        "* not compared, as the table has no number for the same: a, new",
    ]


def test_the_page_has_a_machine_and_every_row_that_has_a_ratio():
    page = Committed.read()
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    unmeasured = [line for line in lines if line.split(" | ")[4] == ABSENT]
    assert page.machine
    assert len(page.rows) == len(lines) - len(unmeasured)
    assert page.rows["gpo / encoder"].high < 0.05


def test_without_a_page_nothing_is_compared(tmp_path):
    changes = Committed.read(tmp_path / "none.md").changes([row("a", 2.0)], machine=HERE)
    assert "changed since the table of docs/speed.md: 0 of 0 rows" in changes
