from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from query_results import renamed, retrieval
from records import blocks_of, read, run

from polypool.infra.errors import InputError
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison import tables
from polypool.pipelines.comparison.comparison import Comparison
from polypool.pipelines.comparison.cross_task import tables_of
from polypool.pipelines.comparison.grouping import arranged
from polypool.pipelines.comparison.queries import Queries
from polypool.pipelines.comparison.results import groups_of, results
from polypool.pipelines.comparison.tables import all_pairs, differences, group_doubts


class QueryStore:
    """Per-query results by run id, as `read_queries` returns them."""

    def __init__(self) -> None:
        self.queries: dict[str, Queries] = {}

    def __call__(self, run: RunRecord, protocol: str) -> Queries:
        if run.run_id not in self.queries:
            raise InputError(f"run {run.run_id} has no artifact per_query/{protocol}.npz")
        return self.queries[run.run_id]

    def record(self, aggregator: str, seed: int, shift: float, *, draw: int = 0) -> RunRecord:
        queries, metrics = retrieval(60, seed=draw + seed, shift=shift)
        made = run(aggregator, seed, metrics={f"whole/{name}": value for name, value in metrics.items()})
        self.queries[made.run_id] = renamed(queries, np.arange(60).astype(str))
        return made


SEEDS = range(5)


def judged_rows(store: QueryStore, runs: list[RunRecord], notes: tuple[str, ...] = ()) -> Comparison:
    groups, _ = arranged(runs, experiment="x", read=read)
    return Comparison(experiment="x", groups=groups, notes=notes).judged(store)


def test_significance_is_shown_and_missing_files_are_noted():
    store = QueryStore()
    runs = [store.record("gpo", seed, 0.0) for seed in SEEDS]
    runs += [store.record("max", seed, 0.1, draw=50) for seed in SEEDS]  # other random scores
    runs += [store.record("mean", seed, 1.5) for seed in SEEDS]
    runs += [store.record("lip", seed, 0.8) for seed in SEEDS]
    del store.queries[runs[-1].run_id]
    found = judged_rows(store, runs, notes=("first",))
    (group,) = found.groups
    assert group.judged.labels == ("gpo", "max", "mean")
    assert group.judged.units == "60 images with their captions"
    assert group.judged.confidence_set == ("gpo", "max")
    assert group.judged.best["mean"].significant is True
    lead = group.mean(group.rows[0]) - group.mean(group.rows[-1])
    assert group.judged.best[group.rows[-1].label].value == pytest.approx(-lead, abs=1e-9)
    gone = f"run {runs[-1].run_id} has no artifact per_query/whole.npz"
    assert found.notes == ("first", f"lip (whole) is not compared by its queries: {gone}")
    table = differences(group)
    assert [cells[-1] for cells in table.rows] == ["yes", "yes", "\u2013", "no"]
    low, high = group.judged.intervals["gpo"]
    assert table.rows[0][2] == f"[{low:.1f}, {high:.1f}]"
    assert all_pairs(group) is None
    asked = replace(found, pairs=True, baseline="mean").judged(store)
    (group,) = asked.groups
    pairs = ["gpo against max", "gpo against mean", "max against mean"]
    assert [cells[0] for cells in all_pairs(group).rows] == pairs
    assert ("gpo against max" in asked.text(), "gpo against max" in found.text()) == (True, False)
    assert "needs" in replace(found, detect=10.0).text()


def test_baseline_table_shows_differences_and_ranks():
    store = QueryStore()
    runs = [store.record(name, seed, at) for at, name in enumerate(("gpo", "max", "mean")) for seed in SEEDS]
    found = replace(judged_rows(store, runs), baseline="mean").judged(store)
    (group,) = found.groups
    (table,) = [of for of in found.tables if of.title == "image_text · coco_mini · whole · against mean"]
    assert table.header[1:4] == ("image_text\ncoco_mini\nwhole\nrsum\n5 seeds", "p", "rank")
    cells = {name: of[:3] for name, *of in table.rows}
    assert [*cells] == ["mean", "gpo", "max"], "expected the baseline first, then the best row"
    assert cells["mean"][0] == f"{group.mean(group.rows[-1]):.1f}"
    of = group.judged.against["gpo"]
    assert cells["gpo"] == [f"+{of.value:.1f} [+{of.low:.1f}, +{of.high:.1f}]", "1.000", "1 [1, 1]"]
    assert cells["mean"][1:] == ["< 0.001", "3 [3, 3]"]
    assert found.text().startswith(
        f"{table.title}\nfirst row: scores of mean; other rows: differences from it in the primary metric"
    )
    again = tables_of(groups_of(found.results))[0]
    assert (again.baseline, again.ranks, tables.across(again)) == (
        "mean",
        {"gpo": (1, 1), "max": (2, 2), "mean": (3, 3)},
        table,
    )
    uneven = replace(judged_rows(store, runs[:-1]), baseline="mean").judged(store)
    assert re.search(r"\nmean +37.4, 4 seeds .*\ngpo .*], 5 seeds ", uneven.text())


def test_single_seed_warns_that_seed_variance_is_unknown():
    store = QueryStore()
    runs = [store.record("gpo", 0, 0.0), store.record("max", 0, 0.3, draw=50), store.record("mean", 0, 1.5)]
    found = judged_rows(store, runs)
    (group,) = found.groups
    assert [row[2][-1] for row in tables.scores(group).rows] == ["*", "*", "?"]
    text = " ".join(replace(found, detect=1.0).text(details=True).split())
    against = replace(found, baseline="mean").judged(store).text()
    assert against.count("]?") == 2
    assert "?: over queries alone; one seed does not show what another would change" in against
    alone = "queries alone: 60 images with their captions; one seed does not show what another would change"
    assert "?: the queries tell it from the best; one seed does not show what another would change" in text
    assert f"confidence set of the best (95 %, over {alone}): 2 of 3: gpo, max" in text
    assert "?: the queries tell it from the best" in found.text()
    assert [cells[-1] for cells in differences(group).rows] == ["yes", "yes", "no, by queries"]
    assert "with one seed a row the number of seeds is unknown" in text
    assert "what seeds can show" not in text


def test_rows_with_mismatched_queries_are_excluded():
    store = QueryStore()
    runs = [store.record(name, 0, 0.1 * at) for at, name in enumerate(("gpo", "max", "mean"))]
    store.queries[runs[1].run_id] = renamed(store.queries[runs[1].run_id], np.arange(1, 61).astype(str))
    store.queries[runs[2].run_id].arrays["i2t_R1"][:] = 0
    found = judged_rows(store, runs)
    assert found.groups[0].judged.labels == ("gpo",)
    assert differences(found.groups[0]) is None
    assert not any("confidence set" in text for text in tables.scores(found.groups[0]).legend)
    assert "max (whole) is not compared by its queries: it was scored on other queries" in found.notes[0]
    assert "mean (whole) is not compared by its queries: its queries give rsum" in found.notes[1]


def test_cost_shows_minimum_or_range_of_runs():
    costs = [(1325.0, 0.5), (1390.0, 0.7), (1457.0, 0.4)]
    runs = [
        run("gpo", seed=seed, metrics={"whole/rsum": 60.0, "cost/step": step, "cost/embed": embed})
        for seed, (step, embed) in enumerate(costs)
    ]
    (group,) = blocks_of(*runs)
    expected = (("gpo", "1,300", "0.4-0.7"),)
    assert differences(group).rows == expected
    assert differences(groups_of(results([group]))[0]).rows == expected
    assert "processor time: the lowest of a row's runs" in differences(group).legend[-1]


def test_rows_not_above_chance_are_noted():
    (group,) = judged_rows(
        store := QueryStore(), [store.record("gpo", 0, 0.0), store.record("mean", 0, 1.5)]
    ).groups
    assert not [*group_doubts(group)]
    chance, found = group.metric.chance, []
    for low, high in ((-1.0, 0.0), (0.0, 9.0), (-2.0, -1.0), (0.1, 9.0), (math.nan, math.nan)):
        ends = {**group.judged.intervals, "mean": (chance + low, chance + high)}
        found.append([*group_doubts(replace(group, judged=replace(group.judged, intervals=ends)))])
    assert [[note.rpartition(": ")[2] for note in notes] for notes in found] == [["mean"]] * 3 + [[], []]
    alone = replace(group, judged=None, metric=replace(group.metric, chance=group.mean(group.rows[1])))
    (note,) = group_doubts(alone)
    assert note.endswith(f": {group.rows[1].label}"), (
        "without intervals the mean must be compared with chance"
    )
