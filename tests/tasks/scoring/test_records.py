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
def test_chance_is_0_and_the_best_100_in_either_direction(metric, values):
    assert {value: metric.chance_normalised(value) for value in values} == values


def test_what_is_not_known_has_no_place_between():
    for known in ({"best": 1.0}, {"chance": 1.0}, {"best": 2.0, "chance": 2.0}):
        assert math.isnan(Metric(name="x", **known).chance_normalised(1.5))


def test_metrics_come_back_as_they_were():
    directions = ("v2t", "t2v")
    chance = dict.fromkeys(["rsum", *(f"{d}/R{k}" for d in directions for k in (1, 5, 10))], 1.25)
    for metrics in ((ERROR,), retrieval_records(directions, chance), (Metric(name="tau"),)):
        described = metrics_json(metrics)
        assert b"NaN" not in described
        files = {"metrics/val-whole.json": described}
        tags = metrics_tag("val/whole", described)
        for read in (files.__getitem__, never):  # a description that was read before is not read again
            assert repr(metrics_from(tags, "val/whole", run="r", read=read)) == repr(tuple(metrics))
        assert metrics_from(tags, "whole", run="r", read=never) == ()


def never(name: str) -> bytes:
    raise AssertionError(f"{name} is not to be read")


def test_queries_come_back_as_they_were():
    units = {"i2t": "image_id", "t2i": "caption_image_id"}
    metrics = retrieval_queries(units, modality="image")
    assert queries_from(queries_json(metrics), where="f") == metrics
    assert next(metric for metric in metrics if metric.name == "rsum").means[1] == QueryMean(
        scores=("t2i_R1", "t2i_R5", "t2i_R10"), units="caption_image_id", factor=100.0
    )
