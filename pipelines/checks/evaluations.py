"""Assertions about a task's evaluations: whole, repeatable, and fit for ranking and comparing runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.grouping import arranged
from polypool.pipelines.comparison.groups import Group
from polypool.pipelines.comparison.query_units import Queries, with_differences
from polypool.pipelines.comparison.statistics.significance import LEAST
from polypool.pipelines.comparison.tables.cross_task import cross_task_table
from polypool.pipelines.figures.pages.draw import draw
from polypool.pipelines.training.recording import tags
from polypool.tasks.adapter import Evaluation, Metric
from polypool.tasks.run import Run
from polypool.tasks.scoring.records import metrics_json, metrics_tag, queries_from, queries_json

_METRIC = re.compile(r"[\w.\-/ :]+")
_LOSS = 0.1  # fraction of the way from its value to chance by which the second of two compared runs is worse


def check_evaluation(evaluation: Evaluation, *, protocol: str, primary: Metric) -> None:
    """Assert that what `evaluate` returned under a protocol is whole; `primary` is the adapter's metric."""
    assert isinstance(evaluation, Evaluation), (
        f"{type(evaluation).__name__} came back, expected a polypool.tasks.adapter.Evaluation"
    )
    assert evaluation.protocol == protocol, f"its protocol is {evaluation.protocol!r}, expected {protocol!r}"
    assert primary.name in evaluation.metrics, (
        f"{primary.name} is not among its metrics {', '.join(evaluation.metrics) or 'none'}"
    )
    for name, value in evaluation.metrics.items():
        assert _METRIC.fullmatch(name), f"the metric {name!r} has characters that MLflow refuses, such as @"
        assert isinstance(value, float | int), (
            f"the metric {name} is {type(value).__name__}, expected a float"
        )
        assert math.isfinite(value), f"the metric {name} is {value}"
    for name, content in evaluation.files.items():
        assert isinstance(content, bytes), f"the file {name} is {type(content).__name__}, expected bytes"
    for make in evaluation.pictures:
        draw(make())
    _check_records(evaluation, primary=primary)
    _check_queries(evaluation.per_query)


def _check_queries(per_query: dict[str, np.ndarray]) -> None:
    """Assert that there are results, each with an id of its query."""
    assert per_query, "per_query is empty, so runs cannot be compared query by query"
    for name, x in per_query.items():
        assert isinstance(x, np.ndarray), f"per_query {name} is {type(x).__name__}, expected a numpy array"
        assert x.dtype != object, (
            f"per_query {name} has dtype object, which cannot be read back; use str or numbers"
        )
        assert x.ndim == 1, f"per_query {name} has shape {x.shape}, expected one value for each query"
    ids = {
        name: len(x) for name, x in per_query.items() if x.dtype.kind in "iuU" and len(np.unique(x)) == len(x)
    }
    assert ids, f"none of {', '.join(per_query)} has a different value for each query, to be joined by"
    results = [name for name, x in per_query.items() if x.dtype.kind in "fb"]
    assert results, (
        f"none of {', '.join(per_query)} is a result: expected floats or bools, such as ranks or accuracies"
    )
    for name in results:
        x, known = per_query[name], ", ".join(f"{k} {n}" for k, n in ids.items())
        assert len(x) in ids.values(), f"per_query {name} has {len(x)} values, and the ids {known}"
        assert not np.isinf(x).any(), f"per_query {name} is not finite"
        assert not np.isnan(x).all(), f"per_query {name} is NaN, as for a query without a result"


def check_same_evaluation(evaluation: Evaluation, expected: Evaluation, what: str = "") -> None:
    """Assert that two evaluations have the same metrics, and the same queries in the same order.

    Args:
        evaluation: the second.
        expected: the first.
        what: begins the messages.
    """
    metrics, per_query = evaluation.metrics, evaluation.per_query
    assert metrics.keys() == expected.metrics.keys(), f"{what}other metrics came the second time"
    for name, value in expected.metrics.items():
        close = math.isclose(metrics[name], value, rel_tol=1e-4, abs_tol=1e-4)
        assert close, f"{what}{name} was {value:.6g} and then {metrics[name]:.6g}"
    assert per_query.keys() == expected.per_query.keys(), (
        f"{what}other results per query came the second time"
    )
    for name, x in expected.per_query.items():
        alike = x.dtype.kind not in "iuU" or np.array_equal(x, per_query[name])
        assert alike, f"{what}per_query {name} came in another order"


def _check_records(evaluation: Evaluation, *, primary: Metric) -> None:
    """Assert that an evaluation describes the adapter's primary metric, and no metric that it lacks."""
    own = evaluation.primary
    assert isinstance(own, Metric), f"its primary is {own!r}, expected a polypool.tasks.adapter.Metric"
    assert (own.name, own.higher_is_better) == (primary.name, primary.higher_is_better), (
        f"its primary metric is {_direction(own)}, and the adapter's {_direction(primary)}"
    )
    names = Counter(metric.name for metric in (own, *evaluation.others))
    twice = ", ".join(sorted(name for name, times in names.items() if times > 1))
    assert not twice, f"it describes {twice} twice"
    absent = ", ".join(name for name in names if name not in evaluation.metrics)
    assert not absent, f"it describes {absent}, not among its metrics {', '.join(evaluation.metrics)}"


def _direction(metric: Metric) -> str:
    return f"{metric.name}, {metric.direction}"


def check_comparison(evaluation: Evaluation, run: Run) -> str:
    """Assert that two runs with such an evaluation are ranked, normalised and compared; return what was compared."""
    metric = evaluation.primary
    for name in ("best", "chance"):
        assert not math.isnan(getattr(metric, name)), f"the {name} value of {metric.name} is not known"
    assert metric.better(metric.best, metric.chance), (
        f"{_direction(metric)}, and its best value {metric.best:g} is no better than chance, {metric.chance:g}"
    )
    assert not metric.better(evaluation.metrics[metric.name], metric.best), (
        f"{metric.name} is {evaluation.metrics[metric.name]:g}, better than its best value {metric.best:g}"
    )
    queries = Queries(
        arrays=evaluation.per_query,
        metrics=queries_from(queries_json(evaluation.query_metrics), where="what is logged of queries"),
    )
    try:
        units = queries.units(metric.name, evaluation.metrics[metric.name])
    except InputError as error:
        raise AssertionError(str(error)) from None
    described = metrics_json([metric, *evaluation.others])
    (group,), notes = arranged(
        _two_runs(evaluation, run, described),
        experiment="check",
        protocol=evaluation.protocol,
        read=lambda record, name: described,
    )
    assert [row.aggregator for row in group.rows] == ["better", "worse"], (
        "its runs are ranked the wrong way round"
    )
    _check_means(group)
    if len(units.ids) < LEAST:
        return f"{metric.name}; the {len(units.ids)} {units.kind} here are too few to judge differences by"
    # the queries belong to the values of the first row
    rows = tuple(replace(row, values=group.rows[0].values) for row in group.rows)
    group, more = with_differences(replace(group, rows=rows), lambda record, protocol: queries)
    assert group.judged is not None, "; ".join([*notes, *more])
    return f"{metric.name} of {group.judged.units}, {metric.best:g} at best and {metric.chance:.4g} by chance"


def _two_runs(evaluation: Evaluation, run: Run, described: bytes) -> list[RunRecord]:
    """Return tracked runs with the evaluation and with a slightly worse one."""
    metric = evaluation.primary
    value = evaluation.metrics[metric.name]
    worse = value - _LOSS * (metric.best - metric.chance)
    return [
        RunRecord(
            run_id=name,
            name=name,
            status="FINISHED",
            started=0.0,
            ended=0.0,
            tags={
                **tags(replace(run, aggregator=name, text_aggregator="", protocol=evaluation.protocol)),
                **metrics_tag(evaluation.protocol, described),
            },
            params={},
            metrics={
                f"{evaluation.protocol}/{of}": x
                for of, x in {**evaluation.metrics, metric.name: reached}.items()
            },
        )
        for name, reached in (("better", value), ("worse", worse))
    ]


def _check_means(group: Group) -> None:
    table = cross_task_table([group, replace(group, dataset=f"{group.dataset} again")])
    assert table is not None
    assert table.complete == ("better", "worse"), "; ".join(table.notes)
    means = np.array([table.mean(name) for name in table.complete])
    assert np.isfinite(means).all(), f"the chance-normalised scores are {means.tolist()}"
    assert means[0] > means[1], (
        f"the better run's chance-normalised score is {means[0]:g}, the worse one's {means[1]:g}"
    )
    assert table.mean_ranks["better"] < table.mean_ranks["worse"], "its mean ranks are the wrong way round"
