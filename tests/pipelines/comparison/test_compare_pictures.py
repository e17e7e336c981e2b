"""The pictures of a comparison, and the critical difference that one of them shows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from records import blocks_of, grid, run, three_tasks, vqa

from pipelines.comparison.comparison import Comparison
from pipelines.comparison.figures.costs import _panel as cost_panel
from pipelines.comparison.figures.costs import spread
from pipelines.comparison.figures.critical import cliques, critical_difference, why_not
from pipelines.comparison.logging import draw_all
from pipelines.comparison.runs.costs import costs_of
from pipelines.comparison.tables.cross_task import cross_task_table
from pipelines.figures.style import new_figure


def test_the_critical_difference_is_that_of_the_paper() -> None:
    # Demsar 2006, section 3.2.2: four classifiers on 14 data sets; 1.25 by its table 5(a), q = 2.569
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    ranks = np.array([1.0, 1.5, 2.4, 4.0, 5.0])  # the last two are exactly the difference apart, and differ
    assert cliques(ranks, 1.0) == [(0, 1), (1, 2)]
    assert cliques(ranks, 0.1) == []
    assert cliques(ranks, 9.0) == [(0, 4)]


def test_too_few_tasks_or_aggregators_have_no_critical_difference(tmp_path: Path) -> None:
    assert why_not(grid(*three_tasks())) == ""
    assert "two tasks" in why_not(None)
    two = grid(*(made for made in three_tasks() if made.tags["aggregator"] != "gpo"))
    assert "three aggregators" in why_not(two)
    found = Comparison(experiment="x", groups=tuple(column.group for column in two.columns), notes=())
    assert found.remarks == (why_not(two),)
    files = [path.name for path in draw_all(found.groups, two, tmp_path)]
    assert files == ["compare.png", "costs.png", "heat_map.png"]


@pytest.mark.parametrize("count", [3, 20])
def test_figures_are_drawn_for_few_and_many_long_names(count: int, tmp_path: Path) -> None:
    names = ["gpo", *(f"slots(k={k}, iterations=4, heads=2, head_width=96)" for k in range(1, count))]
    runs = [run(name, rsum=50.0 + at) for at, name in enumerate(names)]
    runs += [vqa(name, 0, 30.0 + at % 7) for at, name in enumerate(names)]
    groups = blocks_of(*runs)
    files = draw_all(groups, cross_task_table(groups), tmp_path)
    assert [path.stem for path in files] == ["compare", "costs", "heat_map", "critical_difference"]
    for path in files:
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(maxcolors=1 << 20)) > 10
            edge = np.asarray(image.convert("L"))
            assert min(edge[0].min(), edge[-1].min(), edge[:, 0].min(), edge[:, -1].min()) == 255, (
                "nothing is cut"
            )


def test_labels_that_are_spread_do_not_overlap() -> None:
    wanted, sizes = np.array([0.1, 0.1, 0.15, 3.0, 3.9, 3.95]), np.array([0.2, 0.4, 0.2, 0.2, 0.2, 0.2])
    places = spread(wanted, sizes, 4.0)
    assert np.all(np.diff(places) >= (sizes[1:] + sizes[:-1]) / 2 - 1e-9)
    assert places[0] - sizes[0] / 2 >= -1e-9
    assert places[-1] + sizes[-1] / 2 <= 4 + 1e-9
    assert places[3] == pytest.approx(3.0)


@pytest.mark.parametrize("costs", [(17.0, 21.5), (19.9, 20.1), (12.0, 23.0), (20.0, 45.0), (3.0, 900.0)])
def test_an_axis_of_costs_shows_two_numbers_at_least(costs) -> None:
    runs = [
        run(name, metrics={"whole/rsum": 60.0, "time/step_ms": ms})
        for name, ms in zip("ab", costs, strict=True)
    ]
    (group,) = blocks_of(*runs)
    figure = new_figure(9.5, 3.0)
    panel = figure.subplots()
    cost_panel(panel, group, [(row, costs_of(row).step_ms, 0.0) for row in group.rows], 2.2)
    figure.draw_without_rendering()
    low, high = panel.get_xlim()
    axis = panel.xaxis
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    assert (
        len({t.label1.get_text() for t in ticks if t.label1.get_text() and low <= t.get_loc() <= high}) >= 2
    )
