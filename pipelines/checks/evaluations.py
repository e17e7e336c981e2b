"""Assertions about a task's evaluations: whole, repeatable, and fit for ranking and comparing runs."""

from __future__ import annotations

import math
import re
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
from polypool.pipelines.training.recording.described import tags
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
        size = len(per_query[name])
        assert size in ids.values(), (
            f"per_query {name} has {size} values, and the ids {', '.join(f'{k} {n}' for k, n in ids.items())}"
        )
        x = per_query[name]
        assert not np.isinf(x).any(), f"per_query {name} is not finite"
        assert not np.isnan(x).all(), f"per_query {name} is NaN, as for a query without a result"


def check_same_evaluation(evaluation: Evaluation, expected: Evaluation) -> None:
    """Assert that two evaluations have the same metrics, and the same queries in the same order."""
    assert evaluation.metrics.keys() == expected.metrics.keys(), "other metrics came the second time"
    for name, value in expected.metrics.items():
        assert math.isclose(evaluation.metrics[name], value, rel_tol=1e-4, abs_tol=1e-4), (
            f"{name} was {value:.6g} and then {evaluation.metrics[name]:.6g}"
        )
    assert evaluation.per_query.keys() == expected.per_query.keys(), (
        "other results per query came the second time"
    )
    for name, x in expected.per_query.items():
        if x.dtype.kind in "iuU":
            assert np.array_equal(x, evaluation.per_query[name]), f"per_query {name} came in another order"


def _check_records(evaluation: Evaluation, *, primary: Metric) -> None:
    """Assert that an evaluation describes the adapter's primary metric, and no metric that it lacks."""
    own = evaluation.primary
    assert isinstance(own, Metric), f"its primary is {own!r}, expected a polypool.tasks.adapter.Metric"
    assert (own.name, own.higher_is_better) == (primary.name, primary.higher_is_better), (
        f"its primary metric is {_direction(own)}, and the adapter's {_direction(primary)}"
    )
    names = [own.name, *(metric.name for metric in evaluation.others)]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"it describes {', '.join(twice)} twice"
    absent = [name for name in names[1:] if name not in evaluation.metrics]
    assert not absent, (
        f"it describes {', '.join(absent)}, not among its metrics {', '.join(evaluation.metrics)}"
    )


def _direction(metric: Metric) -> str:
    return f"{metric.name}, {metric.direction}"


def check_comparison(evaluation: Evaluation, run: Run) -> str:
    """Assert that two runs with such an evaluation are ranked, normalised and compared; return what was compared."""
    metric = evaluation.primary
    for name, value in (("best", metric.best), ("chance", metric.chance)):
        assert not math.isnan(value), f"the {name} value of {metric.name} is not known"
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
    group, more = with_differences(replace(group, rows=_alike(group)), lambda record, protocol: queries)
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


def _alike(group: Group) -> tuple:
    """Return the rows with the values of the first, to which the queries belong."""
    return tuple(replace(row, values=group.rows[0].values) for row in group.rows)
