from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from matplotlib.colors import to_rgba
from PIL import Image
from records import blocks_of, grid, run, three_tasks, vqa
from toy import toy_run

from polypool.pipelines.comparison.charts import (
    draw_against,
    draw_all,
    draw_lags,
    draw_pairs,
)
from polypool.pipelines.comparison.cross_task import tables_of
from polypool.pipelines.comparison.rows import Group
from polypool.pipelines.comparison.statistics import Difference, Judged
from polypool.pipelines.figures.style import wrapped
from polypool.tasks.adapter import Metric
from polypool.tasks.scoring.metric_specs import RSUM


def may_be_best(group: Group, *p: float) -> Group:
    """Return a group judged against the best row, with these p-values of being the best."""
    labels = tuple(row.label for row in group.rows)
    values = ((10.0, -2.0, 22.0), (-10.0, -22.0, 2.0), (-20.0, -32.0, 0.0))
    best = {
        label: Difference(value=value, low=low, high=high, p=x, over_seeds=True)
        for label, (value, low, high), x in zip(labels, values, p, strict=True)
    }
    return replace(group, judged=Judged(units="", labels=labels, intervals={}, best=best))


def test_long_names_fit_in_figures(tmp_path):
    names = ["gpo", *(f"slots(k={k}, iterations=4, heads=2, head_width=96)" for k in range(1, 3))]
    runs = [run(name, rsum=50.0 + at) for at, name in enumerate(names)]
    runs += [vqa(name, 0, 30.0 + at % 7) for at, name in enumerate(names)]
    groups = blocks_of(*runs)
    files = draw_all(groups, [grid(*runs)], tmp_path)
    assert [path.stem for path in files] == ["compare", "lags", "heat_map"]
    for path in files:
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L"))
        edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
        assert (edge.min(), len(np.unique(grey)) > 10) == (255, True), (
            "the figure must be drawn and not be cut off at an edge"
        )


def test_long_labels_wrap_before_value():
    label = "esa, text mean, data.features=dinov2_cls_4x4_layers12"
    assert wrapped(label).split("\n") == ["esa, text mean, data.features=", "dinov2_cls_4x4_layers12"]
    assert wrapped("kmax(k=5)") == "kmax(k=5)"


def test_lag_chart_shows_intervals_seeds_and_p_values():
    image, video, questions = blocks_of(*three_tasks())
    figure = draw_lags(*tables_of([may_be_best(image, 0.9, 0.2, 0.01), video, questions]))
    figure.draw_without_rendering()
    panels = figure.axes[:3]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["mean", "max", "gpo"], (
        "rows must have the order of the table"
    )
    assert [panel.get_xlabel() for panel in panels] == ["rsum", "rsum", "accuracy in %"]
    titles = [panel.get_title(loc="left") for panel in panels]
    assert titles == ["image_text\ncoco_mini\nwhole", "video_text\nmsrvtt\ndistinct", "vqa\ndaquar\nvqa"]
    # rsum of gpo, mean and max: 70, 60 and 50, each the mean of two seeds, 1 above and 1 below
    dots = [(x, y) for points in panels[0].collections for x, y in points.get_offsets()]
    assert dots == [(-11, 0), (-9, 0), (-21, 1), (-19, 1), (9, 2), (11, 2)]
    bars = [line for line in panels[0].lines if line.get_linewidth() == 4]
    assert [tuple(bar.get_xdata()) for bar in bars] == [(-22.0, 2.0), (-32.0, 0.0), (-2.0, 22.0)]
    darkness = [sum(to_rgba(bar.get_color())[:3]) for bar in bars]
    assert darkness[1] > darkness[0] > darkness[2], "a more probable best row must be darker"
    untested = [tuple(line.get_xdata()) for line in panels[2].lines if line.get_linewidth() == 4]
    assert untested == [(0, 0), (0, 0), (-10, -10)], "untested rows must show differences without intervals"


def test_lower_is_better_reverses_axis_and_labels_outliers():
    mae = {"s": [Metric(name="mae", higher_is_better=False, best=0.0)]}
    values = {"a": 10.0, "b": 12.0, "c": 13.0, "d": 14.0, "e": 500.0}
    runs = [
        run(name, task="age", protocol="s", metrics={"s/mae": value}, records=mae)
        for name, value in values.items()
    ]
    (table,) = tables_of(blocks_of(*runs))
    assert table.aggregators == ("a", "b", "c", "d", "e")
    panel = draw_lags(table).axes[0]
    left, right = panel.get_xlim()
    assert left > 4 > 0 > right
    assert [text.get_text() for text in panel.texts] == ["\u25c2 +490.0"]


def test_lag_chart_omits_columns_and_rows_without_rival(tmp_path):
    runs = [run("mean", rsum=50.0), run("gpo", rsum=60.0), run("mean", rsum=70.0, dataset="msrvtt")]
    (table,) = tables_of(blocks_of(*runs, run("lip", rsum=1.0, dataset="vatex")))
    assert len(table.columns) == 3
    (panel,) = draw_lags(table).axes
    assert panel.get_title(loc="left") == "image_text\ncoco_mini\nwhole"
    assert sorted(label.get_text() for label in panel.get_yticklabels()) == ["gpo", "mean"]
    (alone,) = tables_of(blocks_of(*runs[::2]))
    assert draw_lags(alone) is None
    assert len(draw_all(blocks_of(*runs[::2]), [alone], tmp_path)) == 2


def test_lag_chart_texts_do_not_overlap():
    names = ["gpo", "mean", "kmax(k=5)"]
    data = ("coco", "msrvtt", "vatex", "msvd")
    runs = [run(name, rsum=150.0 + at, dataset=of) for of in data for at, name in enumerate(names)]
    figure = draw_lags(*tables_of(blocks_of(*runs)))
    figure.draw_without_rendering()
    texts = [*figure.texts, figure._supxlabel]
    for panel in figure.axes:
        low, high = panel.get_xlim()
        ticks = zip(panel.get_xticks(), panel.get_xticklabels(), strict=True)
        texts += [label for tick, label in ticks if low <= tick <= high]
        texts += [panel.xaxis.label, *panel.texts, *panel.get_yticklabels(), panel._left_title]
    boxes = [(text.get_text(), text.get_window_extent()) for text in dict.fromkeys(texts) if text.get_text()]
    assert len(boxes) >= 20
    touching = [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]
    assert touching == []


def test_two_table_chart_matches_rows_by_aggregator():
    tuned = {"mean": (60.0, 62.0), "max": (50.0,), "kmax(k=2)": (70.0,), "gpo": (1.0,)}
    untuned = {"mean": (58.0,), "max": (52.0, 54.0), "kmax(k=5)": (40.0,), "lip": (2.0,)}
    groups, others = (
        blocks_of(*(run(name, n, rsum=x) for name, seeds in rows.items() for n, x in enumerate(seeds)))
        for rows in (tuned, untuned)
    )
    (panel,) = draw_against(groups, others).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["kmax", "mean", "max"]
    filled, hollow = (bars[0].get_xdata().tolist() for bars in panel.containers)
    assert (filled, hollow) == ([70.0, 61.0, 50.0], [40.0, 58.0, 53.0])
    assert panel.get_title(loc="left") == "coco_mini · rank correlation -0.50"
    assert draw_against(groups, blocks_of(run("lip"), run("mean"))) is None, (
        "a single shared aggregator must give no chart"
    )


def test_pair_chart_shows_means_over_seeds():
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
    one_text = [(replace(run, text_aggregator="mean"), logged) for run, logged in scored]
    assert draw_pairs(one_text, metric=RSUM) is None
