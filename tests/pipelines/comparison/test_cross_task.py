from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from records import VIDEO, grid, run, scores, three_tasks, vqa

from polypool.infra.text_tables import ABSENT, as_text
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison import tables
from polypool.pipelines.comparison.cross_task import CrossTaskTable
from polypool.pipelines.comparison.rows import Group
from polypool.pipelines.comparison.statistics import Joint, Judged, with_baseline, with_best
from polypool.tasks.adapter import Metric


def test_aggregators_rank_by_mean_chance_normalised_score():
    found = grid(*three_tasks())
    assert [column.title for column in found.columns] == [
        ("image_text", "coco_mini", "whole", "rsum"),
        ("video_text", "msrvtt", "distinct", "rsum"),
        ("vqa", "daquar", "vqa", "accuracy"),
    ]
    mean = {
        name: np.mean([100 * (a - 3.2) / 596.8, 100 * (b - 3.2) / 596.8, 100 * (c - 20) / 80])
        for name, (a, b, c) in {"mean": (60, 90, 40), "max": (50, 96, 40), "gpo": (70, 120, 30)}.items()
    }
    assert found.means == pytest.approx(mean)
    assert found.aggregators == tuple(sorted(mean, key=lambda name: -mean[name]))
    text = as_text(tables.across(found)).splitlines()
    row = next(line for line in text if line.startswith("gpo"))
    assert " ".join(row.split()) == "gpo 70.0 ± 1.4 120.0 ± 1.4 30.0 ± 1.4 3 1.00"


def joint_of(group: Group, variance: float) -> Joint:
    """Return the scores of a group's rows with independent errors over queries."""
    rows = len(group.rows)
    return Joint(
        labels=tuple(row.label for row in group.rows),
        value_R=np.array([group.mean(row) for row in group.rows]),
        seeds_R=np.zeros(rows),
        df_R=np.ones(rows),
        over_seeds=True,
        units_RR=variance * np.eye(rows),
        units_df=1e6,
    )


def judged(table: CrossTaskTable, *variances: float) -> CrossTaskTable:
    """Return a table with the given query variance for each column."""
    columns = []
    for column, variance in zip(table.columns, variances, strict=True):
        joint = joint_of(column.group, variance)
        of = Judged(units="queries", labels=joint.labels, intervals={}, joint=joint)
        columns.append(replace(column, group=replace(column.group, judged=of)))
    return replace(table, columns=tuple(columns))


def test_cross_task_ranks_have_simultaneous_intervals():
    found = grid(*three_tasks())
    assert found.ranks == {}, "ranks need per-query results"
    assert judged(found, 10.0, 20.0, 2.0).ranks == dict.fromkeys(found.aggregators, (1, 3))
    assert judged(found, 4.0, 9.0, 1.0).ranks == {"mean": (1, 2), "max": (1, 2), "gpo": (3, 3)}
    some = judged(found, 0.4, 0.9, 0.1)
    first, *others = some.columns
    untested = replace(first, group=replace(first.group, judged=None))
    assert replace(some, columns=(untested, *others)).ranks == {}


def test_columns_without_baseline_have_no_differences():
    found = judged(grid(*three_tasks()), 4.0, 9.0, 1.0)
    columns = []
    for column in found.columns[:2]:
        (baseline,) = (row.label for row in column.rows.values() if row.aggregator == "mean")
        against = with_baseline(column.group.judged.joint, baseline)
        of = replace(column.group.judged, baseline=baseline, against=against)
        columns.append(replace(column, group=replace(column.group, judged=of)))
    table = replace(found, columns=(*columns, found.columns[2]))
    assert (table.baseline, table.aggregators[0]) == ("mean", "mean")
    assert "vqa · daquar · vqa has no tested row mean" in table.notes
    shown = tables.across(table)
    assert [row[1] for row in shown.rows[:1]] == ["60.0"]
    assert {row[5] for row in shown.rows} == {ABSENT}
    assert shown.best == {(2, 1), (2, 3), (1, 5)}, "expected gpo on images and videos, max on questions"
    short = tables.brief_across(table).legend
    assert [line.partition(":")[0] for line in short] == ["first row", "p", "rank"]


def test_each_recipe_column_has_own_confidence_set():
    runs = [run("gpo", rsum=60.0), run("mean", rsum=59.0), vqa("gpo", 0, 30.0)]
    runs += [run("gpo", rsum=50.0, recipe="bert"), run("mean", rsum=40.0, recipe="bert")]
    bert, mini, _ = grid(*runs).columns
    joint = joint_of(bert.group, 1.0)
    judged = Judged(units="queries", labels=joint.labels, intervals={}, best=with_best(joint), joint=joint)
    judged_group = replace(bert.group, judged=judged)
    assert judged.confidence_set == ("gpo, mini", "mean, mini")
    marks, found = {}, []
    for column in (mini, bert):
        of = replace(column, group=judged_group)
        marks |= {row.label: of.from_best[row.label].found for row in of.rows.values()}
        found.append(tables.finding(of.group, dict(sorted(of.rows.items())), best=of.from_best))
        single = replace(of, rows={"gpo": of.rows["gpo"]})
        assert single.from_best == {}, "a single row must not be compared with other recipes"
    assert marks == {"gpo, mini": False, "mean, mini": False, "gpo, bert": False, "mean, bert": True}
    assert ["2 of 2 may be" in found[0], "1 of 2 may be the best" in found[1]] == [True, True]
    both = CrossTaskTable(columns=tuple(replace(column, group=judged_group) for column in (mini, bert)))
    named = {note.partition(": ")[0] for note in tables.brief_across(both).notes if "has the best" in note}
    assert named == {"image_text coco_mini whole mini", "image_text coco_mini whole bert"}
    one_seed = replace(judged, joint=replace(joint, over_seeds=False))
    table = CrossTaskTable(columns=(replace(bert, group=replace(bert.group, judged=one_seed)),))
    for shown in (tables.across(table), tables.brief_across(table)):
        assert shown.rows[1][1].endswith("?")
        assert [line for line in shown.legend if line.startswith("?: the queries tell it from the best")]


def costly(made: RunRecord, step: float, weights: float) -> RunRecord:
    return replace(made, metrics=made.metrics | {"cost/step": step, "weights/aggregators": weights})


def test_cross_task_table_shows_costs():
    runs = [
        *(costly(run("mean", seed), step, 0.0) for seed, step in enumerate((30.0, 50.0))),
        costly(vqa("mean", 0, 40.0), 20.0, 0.0),
        costly(run("gpo"), 60.0, 1700.0),
        costly(vqa("gpo", 0, 30.0), 45.0, 1400.0),
        costly(run("gem"), 80.0, 1.0),
        costly(vqa("gem", 0, 30.0), math.nan, 2.0),
        run("lip"),
    ]
    found = grid(*runs)
    assert found.steps == pytest.approx({"mean": 1.0, "gpo": math.sqrt(60 / 30 * 45 / 20)})
    assert found.weights == {"mean": 0.0, "gpo": 1700.0, "gem": 2.0}
    rows = {row[0]: row[-2:] for row in tables.across(found).rows}
    assert rows == {
        "mean": ("0", "1.00"),
        "gpo": ("1,700", "2.12"),
        "gem": ("2", ABSENT),
        "lip": (ABSENT, ABSENT),
    }


def test_one_task_gives_no_table_and_protocols_are_columns():
    both = scores("coco-5k", 300.0) | scores("coco-1k-5fold", 400.0)
    coco = [run(name, dataset="coco", protocol="coco-5k", metrics=both) for name in ("mean", "max", "gpo")]
    assert grid(*coco) is None
    found = grid(*coco, *(vqa(name, 0, 30.0) for name in ("mean", "max", "gpo")))
    assert [column.title[2] for column in found.columns] == ["coco-1k-5fold", "coco-5k", "vqa"]
    assert [column.group.protocol for column in found.counting] == ["coco-5k", "vqa"]
    assert found.means["mean"] == pytest.approx((100 * (300 - 3.2) / 596.8 + 12.5) / 2)


def test_incomplete_aggregators_and_small_columns_are_unranked():
    names = ("mean", "max", "gpo", "lip", "gem")
    runs = [run(name, rsum=50.0 + at) for at, name in enumerate(names)]
    runs += [vqa(name, 0, 40.0 + at) for at, name in enumerate(names[:4])]
    runs += [run(name, **VIDEO) for name in names[:2]]
    found = grid(*runs)
    assert [column.group.task for column in found.counting] == ["image_text", "vqa"]
    assert found.complete == ("gpo", "lip", "max", "mean")
    assert found.notes == (
        "video_text · msrvtt · distinct counts in no rank: it has fewer than half of the aggregators of the "
        "largest column",
        "without rank, since a column lacks them: gem",
    )
    tau = {"metrics": {"s/tau": 0.4}, "records": {"s": [Metric(name="tau")]}}
    unknown = grid(run("gpo"), vqa("gpo", 0, 30.0), run("gpo", task="sorting", protocol="s", **tau))
    assert "chance or the best possible value of tau is not known" in unknown.notes[0]
    apart = grid(run("gpo"), vqa("max", 0, 30.0))
    assert apart.notes == ("no ranks: no aggregator is in every column that counts",)
    assert (
        judged(apart, 4.0, 1.0).ranks == judged(grid(run("gpo"), vqa("gpo", 0, 30.0)), 4.0, 1.0).ranks == {}
    )
