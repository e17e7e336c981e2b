"""What an evaluation must be to be logged, compared and joined with those of other runs."""

from __future__ import annotations

import math
import re

import numpy as np

from pipelines.checks.comparisons import check_records
from pipelines.pages.draw import draw
from tasks.base import Evaluation, Metric

_METRIC = re.compile(r"[\w.\-/ :]+")


def check_evaluation(evaluation: Evaluation, *, protocol: str, primary: Metric) -> None:
    """Assert that an evaluation is whole.

    Args:
        evaluation: what `evaluate` returned.
        protocol: the one that `evaluate` was called with.
        primary: the metric that chooses the best epoch.
    """
    assert isinstance(evaluation, Evaluation), (
        f"{type(evaluation).__name__} came back, expected a tasks.base.Evaluation"
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
    check_records(evaluation, primary=primary)
    _check_queries(evaluation.per_query)


def _check_queries(per_query: dict[str, np.ndarray]) -> None:
    """Assert that there are results, each beside an id of its query."""
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
        assert not np.isnan(x).all(), f"per_query {name} is NaN, which stands for a query without a result"


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
