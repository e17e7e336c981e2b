"""What numbers mean, kept as JSON and read back."""

from __future__ import annotations

import json
import math

import pytest

from infra.errors import InputError
from tasks.base import Metric, QueryMean, QueryMetric
from tasks.scoring.described import retrieval_queries, retrieval_records
from tasks.scoring.records import LIMIT, TAG, metrics_from, metrics_tag, queries_from, queries_json

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
    for metric in (
        Metric(name="x", best=1.0),
        Metric(name="x", chance=1.0),
        Metric(name="x", best=2.0, chance=2.0),
    ):
        assert math.isnan(metric.chance_normalised(1.5))


def test_metrics_come_back_as_they_were():
    directions = ("v2t", "t2v")
    chance = dict.fromkeys(["rsum", *(f"{d}/R{k}" for d in directions for k in (1, 5, 10))], 1.25)
    for metrics in ((ERROR,), retrieval_records(directions, chance), (Metric(name="tau"),)):
        tags = metrics_tag("val/whole", metrics)
        assert repr(metrics_from(tags, "val/whole", run="r")) == repr(tuple(metrics))  # NaN is not NaN
        assert metrics_from(tags, "whole", run="r") == ()
        assert "NaN" not in tags[f"{TAG}val/whole"]


def test_queries_come_back_as_they_were():
    units = {"i2t": "image_id", "t2i": "caption_image_id"}
    metrics = retrieval_queries(units, modality="image")
    assert queries_from(queries_json(metrics), where="f") == metrics
    assert next(metric for metric in metrics if metric.name == "rsum").means[1] == QueryMean(
        scores=("t2i_R1", "t2i_R5", "t2i_R10"), units="caption_image_id", factor=100.0
    )


def test_a_tag_stays_in_its_bounds_and_keeps_what_tables_show():
    many = [
        ERROR,
        *(Metric(name=f"type/{i:03d} {'x' * 40}", in_tables=False) for i in range(200)),
        Metric(name="last"),
    ]
    tag = metrics_tag("vqa", many)
    assert LIMIT - 150 < len(tag[f"{TAG}vqa"]) <= LIMIT
    names = [metric.name for metric in metrics_from(tag, "vqa", run="r")]
    assert (names[0], names[-1]) == ("mae", "last")
    assert names[1:-1] == [metric.name for metric in many[1 : len(names) - 1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"higher_is_better": "yes"},
            r"run r1: the tag metrics.whole, \[0\].higher_is_better is 'yes', expected true",
        ),
        ({"best": "600"}, r"\[0\].best is '600', expected a number"),
        ({"best": True}, r"\[0\].best is True, expected a number"),
        ({"chance": math.inf}, r"\[0\].chance is inf, expected a number"),
        ({"name": 3}, r"\[0\].name is 3, expected text"),
        (
            {"bset": 1.0},
            r"unknown field in run r1: the tag metrics.whole, \[0\]: 'bset'. Did you mean 'best'\?",
        ),
    ],
)
def test_a_damaged_record_names_run_and_field(changes, message):
    tags = {f"{TAG}whole": json.dumps([{"name": "rsum"} | changes])}
    with pytest.raises(InputError, match=message):
        metrics_from(tags, "whole", run="r1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "the tag metrics.whole is no JSON"),
        ("{}", "is dict, expected a list"),
        ("[]", "describes no metric"),
        ('["rsum"]', r"\[0\] is 'rsum', expected fields by name"),
        ('[{"best": 1}]', r"\[0\] has no name"),
    ],
)
def test_what_is_no_record_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        metrics_from({f"{TAG}whole": text}, "whole", run="r1")


def test_damaged_queries_are_refused():
    good = QueryMetric(name="a", means=(QueryMean(scores=("a",), units="id"),), units="questions")
    plain = json.loads(queries_json([good]))
    plain[0]["means"][0]["scores"] = "a"
    with pytest.raises(InputError, match=r"here, \[0\].means\[0\].scores is 'a', expected a list"):
        queries_from(json.dumps(plain), where="here")
