"""Descriptions of metrics, written as JSON and read back."""

import math

import pytest

from polypool.tasks.adapter import Metric, QueryMean
from polypool.tasks.scoring.metric_specs import retrieval_queries, retrieval_records
from polypool.tasks.scoring.records import (
    metrics_from,
    metrics_json,
    metrics_tag,
    queries_from,
    queries_json,
)

ERROR = Metric(name="mae", higher_is_better=False, best=0.0, chance=7.5, unit="years")


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        (Metric(name="rsum", best=600.0, chance=100.0), {100.0: 0.0, 600.0: 100.0, 350.0: 50.0, 50.0: -10.0}),
        (Metric(name="mae", higher_is_better=False, best=1.0, chance=5.0), {5.0: 0.0, 1.0: 100.0, 4.0: 25.0}),
    ],
)
def test_normalised_metric_is_0_at_chance_and_100_at_best(metric, values):
    assert {value: metric.chance_normalised(value) for value in values} == values


def test_unknown_chance_or_best_normalises_to_nan():
    for known in ({"best": 1.0}, {"chance": 1.0}, {"best": 2.0, "chance": 2.0}):
        assert math.isnan(Metric(name="x", **known).chance_normalised(1.5))


def test_metrics_roundtrip_through_json():
    directions = ("v2t", "t2v")
    chance = dict.fromkeys(["rsum", *(f"{d}/R{k}" for d in directions for k in (1, 5, 10))], 1.25)
    for metrics in ((ERROR,), retrieval_records(directions, chance), (Metric(name="tau"),)):
        described = metrics_json(metrics)
        assert b"NaN" not in described
        files = {"metrics/val-whole.json": described}
        tags = metrics_tag("val/whole", described)
        for read in (files.__getitem__, never):  # cached descriptions are not read again
            assert repr(metrics_from(tags, "val/whole", run="r", read=read)) == repr(tuple(metrics))
        assert metrics_from(tags, "whole", run="r", read=never) == ()


def never(name: str) -> bytes:
    raise AssertionError(f"{name} is not to be read")


def test_query_means_roundtrip_through_json():
    units = {"i2t": "image_id", "t2i": "caption_image_id"}
    metrics = retrieval_queries(units, modality="image")
    assert queries_from(queries_json(metrics), where="f") == metrics
    assert next(metric for metric in metrics if metric.name == "rsum").means[1] == QueryMean(
        scores=("t2i_R1", "t2i_R5", "t2i_R10"), units="caption_image_id", factor=100.0
    )
