"""What a comparison says of two rows: which differences are real, and what each row costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from query_results import renamed, retrieval
from records import blocks_of, run

from infra.errors import InputError
from infra.registry import AGGREGATORS
from infra.tracking import RunRecord
from pipelines.comparison.comparison import Comparison, with_bootstrap
from pipelines.comparison.runs.costs import costs_of, weights_of
from pipelines.comparison.runs.grouping import arranged
from pipelines.comparison.runs.per_query import Queries
from pipelines.comparison.tables import report as tables
from pipelines.comparison.tables.render import as_text


class Kept:
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


def test_significant_differences_are_told_from_others_and_missing_files_are_said() -> None:
    kept = Kept()
    runs = [kept.record("gpo", seed, 0.0) for seed in (0, 1)]
    runs += [
        kept.record("max", seed, 0.1, draw=50) for seed in (0, 1)
    ]  # other luck, not the same a little worse
    runs += [kept.record("mean", seed, 1.5) for seed in (0, 1)]
    runs += [kept.record("lip", seed, 0.8) for seed in (0, 1)]
    del kept.queries[runs[-1].run_id]
    groups, _ = arranged(runs, experiment="x")
    found = with_bootstrap(Comparison(experiment="x", groups=groups, notes=("first",)), kept)
    (group,) = found.groups
    assert group.bootstrap.labels == ("gpo", "max", "mean")
    assert not group.bootstrap.difference("gpo", "max").significant
    assert group.bootstrap.difference("gpo", "mean").significant
    assert group.bootstrap.difference("gpo", "mean").value == pytest.approx(
        group.rows[0].mean("rsum") - next(row for row in group.rows if row.label == "mean").mean("rsum"),
        abs=1e-3,
    )
    gone = f"run {runs[-1].run_id} has no artifact per_query/whole.npz"
    assert found.notes == ("first", f"lip (whole) is left out of the bootstrap: {gone}")
    lines = {line.split()[0]: line for line in as_text(tables.scores(group)).splitlines()[5:] if line.strip()}
    assert [("*" in lines[name]) for name in ("gpo", "max", "lip", "mean")] == [False, True, False, False]
    assert "*: no significant difference from gpo" in as_text(tables.scores(group))
    table = as_text(tables.differences(group, costs=False)).splitlines()
    assert [line.split()[-1] for line in table[-4:]] == ["\u2013", "no", "\u2013", "yes"]
    pairs = tables.all_pairs(group)
    assert [cells[0] for cells in pairs.rows] == ["gpo against max", "gpo against mean", "max against mean"]
    assert "gpo against max" in replace(found, pairs=True).text()
    assert "gpo against max" not in found.text()


def test_rows_scored_on_other_queries_or_with_other_values_are_left_out() -> None:
    kept = Kept()
    runs = [kept.record(name, 0, 0.1 * at) for at, name in enumerate(("gpo", "max", "mean"))]
    kept.queries[runs[1].run_id] = renamed(kept.queries[runs[1].run_id], np.arange(1, 61).astype(str))
    kept.queries[runs[2].run_id].arrays["i2t_R1"][:] = 0
    groups, _ = arranged(runs, experiment="x")
    found = with_bootstrap(Comparison(experiment="x", groups=groups, notes=()), kept)
    assert found.groups[0].bootstrap is None
    assert "max (whole) is left out of the bootstrap: it was scored on other queries" in found.notes[0]
    assert "mean (whole) is left out of the bootstrap: its queries give rsum" in found.notes[1]


def test_costs_are_logged_ones_or_follow_from_the_specs() -> None:
    def given(metrics=(), params=(), **tags) -> RunRecord:
        made = run("gpo", metrics={"whole/rsum": 60.0, **dict(metrics)}, **tags)
        return replace(made, params={**made.params, **dict(params)})

    specs = {"visual": "regions(width=64)", "text": "bigru"}
    own = [sum(p.numel() for p in AGGREGATORS.build("lip", width).parameters()) for width in (64, 1024)]
    made = replace(given(params=specs), tags={**given().tags, "aggregator": "lip", "text_aggregator": "lip"})
    assert weights_of(made) == sum(own)
    assert weights_of(given({"weights/aggregators": 5.0}, specs)) == 5.0
    assert math.isnan(weights_of(given(params={**specs, "visual": "nowhere"})))
    assert math.isnan(weights_of(given(params=specs, model="hgr")))
    (group,) = blocks_of(
        given({"train/samples_per_second": 500.0, "time/embed_ms": 2.0}, {"optim.batch": "128"})
    )
    costs = costs_of(group.rows[0])
    assert (costs.step_ms, costs.embed_ms) == (256.0, 2.0)
    (group,) = blocks_of(
        given({"train/samples_per_second": 500.0, "time/step_ms": 3.0}, {"optim.batch": "128"})
    )
    assert costs_of(group.rows[0]).step_ms == 3.0
    (line,) = tables.differences(group).rows
    assert line == ("gpo", "3.0")
