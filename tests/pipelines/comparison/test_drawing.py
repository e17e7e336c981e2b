from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from PIL import Image
from records import blocks_of, grid, run, three_tasks, vqa
from toy import toy_run

from polypool.pipelines.comparison.charts import (
    Chart,
    cliques,
    critical_difference,
    draw_all,
    draw_chart,
    draw_charts,
    draw_cross_task,
    draw_pairs,
    group_chart,
    table_charts,
)
from polypool.pipelines.comparison.rows import Group
from polypool.pipelines.comparison.statistics import Difference, Judged
from polypool.pipelines.figures.style import POINT, new_figure
from polypool.tasks.scoring.metric_specs import RSUM


def drawn(chart: Chart) -> tuple[list[Axes], Axes]:
    """Return the panels of a chart's columns and its cost panel, laid out."""
    figure = new_figure(10.5, 3.0)
    panels = draw_chart(chart, figure)
    figure.draw_without_rendering()
    return panels


def filled(panel: Axes) -> list[bool]:
    """Return whether the points of a panel are filled, from the top."""
    colours = panel.collections[1].get_facecolor().tolist()
    assert all(colour in ([*to_rgba(POINT)], [*to_rgba("white")]) for colour in colours)
    return [colour == [*to_rgba(POINT)] for colour in colours]


def may_be_best(group: Group, *p: float) -> Group:
    """Return a group with an interval of 2 below and 5 above each mean, and p of each row's being the best."""
    labels = tuple(row.label for row in group.rows)
    found = zip(labels, p, strict=True)
    best = {of: Difference(value=0.0, low=-1.0, high=1.0, p=x, over_seeds=True) for of, x in found}
    ends = {row.label: (group.mean(row) - 2, group.mean(row) + 5) for row in group.rows}
    return replace(group, judged=Judged(units="", labels=labels, intervals=ends, best=best))


def test_the_critical_difference_is_that_of_the_paper():
    # Demsar 2006, section 3.2.2: four classifiers on 14 data sets; 1.25 by its table 5(a), q = 2.569
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    ranks = np.array([1.0, 1.5, 2.4, 4.0, 5.0])  # the last two are exactly the difference apart, and differ
    assert cliques(ranks, 1.0) == [(0, 1), (1, 2)]
    assert cliques(ranks, 0.1) == []
    assert cliques(ranks, 9.0) == [(0, 4)]


def test_figures_are_drawn_for_long_names(tmp_path):
    names = ["gpo", *(f"slots(k={k}, iterations=4, heads=2, head_width=96)" for k in range(1, 3))]
    runs = [run(name, rsum=50.0 + at) for at, name in enumerate(names)]
    runs += [vqa(name, 0, 30.0 + at % 7) for at, name in enumerate(names)]
    groups = blocks_of(*runs)
    files = draw_all(groups, [grid(*runs)], tmp_path)
    assert [path.stem for path in files] == ["compare", "costs", "heat_map", "critical_difference"]
    assert not grid(*(made for made in runs if made.tags["aggregator"] != "gpo")).has_diagram
    for path in files:
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L"))
        edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
        assert (edge.min(), len(np.unique(grey)) > 10) == (255, True), "drawn, and nothing is cut"


@pytest.mark.parametrize("steps", [(19.9, 20.1), (912.0, 3.0)])
def test_each_row_has_its_cost_beside_its_score(steps):
    costs = ({"whole/rsum": 60.0 - n, "cost/step": cost} for n, cost in enumerate(steps))
    (group,) = blocks_of(*(run(name, metrics=of) for name, of in zip("ab", costs, strict=True)))
    (scores,), beside = drawn(group_chart(group))
    assert [label.get_text().partition(",")[0] for label in scores.get_yticklabels()] == ["a", "b"]
    times = [step / min(steps) for step in steps]
    assert [bar.get_x() + bar.get_width() for bar in beside.patches] == pytest.approx(times)
    shown = [f"{time:.2f}" if time < 10 else f"{float(f'{time:.2g}'):g}" for time in times]
    assert [text.get_text() for text in beside.texts] == shown
    assert (beside.get_xscale(), beside.get_xlim()[0]) == ("log", 1.0)
    assert scores.get_ylim() == beside.get_ylim() == (1.6, -0.6), "the best on top"
    assert "processor time of a training step, on a logarithmic axis" in group_chart(group).caption


def test_points_have_intervals_and_those_of_the_confidence_set_are_filled():
    names = ("a", "b", "c")
    runs = [run(name, metrics={"whole/rsum": 60.0 + n, "cost/step": 2.0 + n}) for n, name in enumerate(names)]
    (group,) = blocks_of(*runs)
    chart = group_chart(may_be_best(group, 0.9, 0.01, 0.2))
    (panel,), _ = drawn(chart)
    lines, points = panel.collections
    assert [tuple(x for x, _ in ends) for ends in lines.get_segments()] == [(60, 67), (59, 66), (58, 65)]
    assert points.get_offsets().tolist() == [[62, 0], [61, 1], [60, 2]]
    assert filled(panel) == [True, False, True]
    assert "filled: in the confidence set of the best (95 %); hollow: not in it" in chart.caption
    unjudged = group_chart(group)
    assert not any(filled(drawn(unjudged)[0][0]))
    assert unjudged.caption.startswith("lines: deviations over seeds\ncost:")


def test_a_table_of_several_columns_has_a_panel_for_each():
    image, video, questions = blocks_of(*three_tasks())
    groups = [may_be_best(image, 0.9, 0.2, 0.01), may_be_best(video, 0.9, 0.01, 0.2), questions]
    (chart,) = table_charts(groups)
    scores, _ = drawn(chart)
    named = [label.get_text().split() for label in scores[0].get_yticklabels()]
    assert named == [["gpo", "1.7"], ["max", "2.2"], ["mean", "2.2"]], "the best mean rank on top"
    titles = [panel.get_title(loc="left") for panel in scores]
    assert titles == ["image_text\ncoco_mini\nwhole", "video_text\nmsrvtt\ndistinct", "vqa\ndaquar\nvqa"]
    assert [panel.get_xlabel() for panel in scores] == ["rsum", "rsum", "accuracy in %"]
    means = [panel.collections[1].get_offsets()[:, 0].tolist() for panel in scores]
    assert means == [[70, 50, 60], [120, 96, 90], [30, 40, 40]]
    # by the scores of a column: gpo, mean, max of images; gpo, max, mean of clips
    assert [filled(panel) for panel in scores] == [[True, False, True], [True, False, True], [False] * 3]
    assert scores[0].collections[0].get_segments()[1][:, 0].tolist() == [48, 55]
    assert "; not judged, and hollow: daquar vqa cost:" in " ".join(chart.caption.split())
    assert "95 % intervals, else deviations over seeds" in chart.caption
    (alone,) = table_charts([groups[0]])
    assert (len(alone.columns), alone.ranks) == (1, {})


def test_names_and_numbers_of_a_chart_do_not_overlap():
    names = ["gpo", "mean", "kmax(k=5)"]
    data = ("coco", "msrvtt", "vatex", "msvd")
    runs = [run(name, rsum=150.0 + at, dataset=of) for of in data for at, name in enumerate(names)]
    figure = draw_charts(table_charts(blocks_of(*runs)))
    figure.draw_without_rendering()
    texts = [*figure.subfigs[0].texts]
    for panel in figure.subfigs[0].axes:
        low, high = panel.get_xlim()
        ticks = zip(panel.get_xticks(), panel.get_xticklabels(), strict=True)
        texts += [label for tick, label in ticks if low <= tick <= high]
        texts += [panel.xaxis.label, *panel.texts, *panel.get_yticklabels(), panel._left_title]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    assert len(boxes) >= 30
    touching = [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]
    assert touching == []


def test_the_heading_of_a_heat_map_fits_its_figure():
    figure = draw_cross_task(grid(run("gpo"), run("mean"), vqa("gpo", 0, 30.0), vqa("mean", 0, 31.0)))
    figure.draw_without_rendering()
    assert figure._suptitle.get_window_extent().x1 < figure.bbox.x1


def test_pairs_are_means_over_seeds():
    names = ("mean", "max", "kmax(k=2)")
    runs = [
        replace(toy_run(), aggregator=v, text_aggregator="" if v == t else t, seed=seed)
        for v, t, seed in itertools.product(names, names, (0, 1))
    ]
    score_VTS = np.random.default_rng(0).uniform(100, 300, (3, 3, 2))
    scored = [(run, {"whole/rsum": x, "dev/rsum": 0.0}) for run, x in zip(runs, score_VTS.flat, strict=True)]
    mean_VT = score_VTS.mean(axis=2)
    shown = lambda: [text.get_text() for text in draw_pairs(scored, metric=RSUM).axes[0].texts]  # noqa: E731
    assert shown() == [f"{x:.1f}" for x in mean_VT.flat]
    scored[6] = (runs[6], {})  # max, text mean, seed 0
    mean_VT[1, 0] = score_VTS[1, 0, 1]
    panel = draw_pairs(scored, metric=RSUM).axes[0]
    assert shown() == [f"{x:.1f}" for x in mean_VT.flat]
    assert panel.get_title(loc="left") == "toy · whole · rsum\nmean over 1 to 2 seeds"
    assert [label.get_text() for label in panel.get_yticklabels()] == [*names]
    scored[7] = (runs[7], {})
    assert shown()[3] == "\u2013"
    assert draw_pairs([(run, {}) for run in runs], metric=RSUM) is None
