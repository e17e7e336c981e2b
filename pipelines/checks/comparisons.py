"""What a task's evaluation must say of itself for its runs to be ranked, normalised and compared.

Two runs are made up of one evaluation, as tracking would have them, and compared as `compare` does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from infra.errors import InputError
from infra.tracking import RunRecord
from pipelines.comparison.runs.grouping import arranged
from pipelines.comparison.runs.groups import Group
from pipelines.comparison.runs.per_query import Queries, with_differences
from pipelines.comparison.statistics.significance import LEAST
from pipelines.comparison.tables.cross_task import cross_task_table
from pipelines.training.recording.described import tags
from tasks.base import Evaluation, Metric
from tasks.run import Run
from tasks.scoring.records import TAG, metrics_from, metrics_tag, queries_from, queries_json

_LOSS = 0.1
"""Of the way from its value to chance that the second of the two runs is worse."""


def check_records(evaluation: Evaluation, *, primary: Metric) -> None:
    """Assert that an evaluation describes its primary metric, as its adapter does, and others that it has.

    Args:
        evaluation: what `evaluate` returned.
        primary: the adapter's.
    """
    own = evaluation.primary
    assert isinstance(own, Metric), f"its primary is {own!r}, expected a tasks.base.Metric"
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
    tracked = metrics_from(
        metrics_tag(evaluation.protocol, [own, *evaluation.others]), evaluation.protocol, run="to be tracked"
    )
    tabled = [metric.name for metric in (own, *evaluation.others) if metric.in_tables]
    lost = [name for name in tabled if name not in {metric.name for metric in tracked}]
    assert not lost, (
        f"the tag {TAG}{evaluation.protocol} has no room for {', '.join(lost[:5])}: show fewer in tables"
    )


def _direction(metric: Metric) -> str:
    return f"{metric.name}, {'higher' if metric.higher_is_better else 'lower'} is better"


def check_comparison(evaluation: Evaluation, run: Run) -> str:
    """Assert that two runs with such an evaluation are ranked, normalised and compared query by query.

    Returns:
        What was compared.
    """
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
    (group,), notes = arranged(_two_runs(evaluation, run), experiment="check", protocol=evaluation.protocol)
    assert [row.aggregator for row in group.rows] == ["better", "worse"], (
        "its runs are ranked the wrong way round"
    )
    _check_means(group)
    if len(units.ids) < LEAST:
        return f"{metric.name}; the {len(units.ids)} {units.kind} here are too few to judge differences by"
    group, more = with_differences(replace(group, rows=_alike(group)), lambda record, protocol: queries)
    assert group.judged is not None, "; ".join([*notes, *more])
    return f"{metric.name} of {group.judged.units}, {metric.best:g} at best and {metric.chance:.4g} by chance"


def _two_runs(evaluation: Evaluation, run: Run) -> list[RunRecord]:
    """Return the evaluation as that of a run, and one that is a little worse."""
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
                **metrics_tag(evaluation.protocol, [metric, *evaluation.others]),
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
    """Return the rows with the values of the first, which the queries are those of."""
    return tuple(replace(row, values=group.rows[0].values) for row in group.rows)
