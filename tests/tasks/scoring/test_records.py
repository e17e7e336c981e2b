"""Descriptions of metrics, written as JSON and read back."""

import json
import math

import pytest

from polypool.infra.errors import InputError
from polypool.tasks.adapter import Metric, QueryMean
from polypool.tasks.scoring.described import retrieval_queries, retrieval_records
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


def test_a_description_that_is_not_that_of_the_tag_is_refused():
    tags = metrics_tag("whole", metrics_json([ERROR, Metric(name="other")]))
    with pytest.raises(InputError, match=r"run r: the tag metrics.whole is not that of metrics/whole.json"):
        metrics_from(tags, "whole", run="r", read=lambda name: metrics_json([ERROR]))
    damaged = b'[{"name": 3}]'
    with pytest.raises(InputError, match=r"run r: metrics/whole.json: \[0\].name must be text, not 3"):
        metrics_from(metrics_tag("whole", damaged), "whole", run="r", read=lambda name: damaged)


def test_queries_come_back_as_they_were():
    units = {"i2t": "image_id", "t2i": "caption_image_id"}
    metrics = retrieval_queries(units, modality="image")
    assert queries_from(queries_json(metrics), where="f") == metrics
    assert next(metric for metric in metrics if metric.name == "rsum").means[1] == QueryMean(
        scores=("t2i_R1", "t2i_R5", "t2i_R10"), units="caption_image_id", factor=100.0
    )


DESCRIBED = "run r1: metrics/whole.json"


def read_back(text: str) -> None:
    metrics_from(metrics_tag("whole", text.encode()), "whole", run="r1", read=lambda name: text.encode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"higher_is_better": "yes"},
            rf"{DESCRIBED}: \[0\].higher_is_better must be True or False, not 'yes'",
        ),
        ({"best": "600"}, r"\[0\].best must be a finite number, not '600'"),
        ({"best": True}, r"\[0\].best must be a finite number, not True"),
        ({"chance": math.inf}, r"\[0\].chance must be a finite number, not inf"),
        ({"chance": 10**400}, r"\[0\].chance must be a finite number, not 1000"),
        ({"name": 3}, r"\[0\].name must be text, not 3"),
        ({"bset": 1.0}, rf"{DESCRIBED}: unknown field '\[0\].bset'. Did you mean '\[0\].best'\?"),
    ],
)
def test_a_damaged_record_names_run_and_field(changes, message):
    with pytest.raises(InputError, match=message):
        read_back(json.dumps([{"name": "rsum"} | changes]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "metrics/whole.json is no JSON"),
        ("[1" + "0" * 5000 + "]", "metrics/whole.json is no JSON"),
        ("[" * 100000, "metrics/whole.json is no JSON"),
        ("{}", "metrics/whole.json: it must be a list, not {}"),
        ("[]", "describes no metric"),
        ('["rsum"]', r"\[0\] must be a mapping of names to values, not 'rsum'"),
        ('[{"best": 1}]', r"\[0\].name is missing"),
    ],
)
def test_what_is_no_record_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        read_back(text)


@pytest.mark.parametrize(
    ("means", "message"),
    [
        ([{"scores": "a", "units": "id"}], r"means\[0\].scores must be a list, not 'a'"),
        ([{"scores": [], "units": "id"}], r"means\[0\].scores must be at least one, not \[\]"),
        ([], r"means must be at least one, not \[\]"),
    ],
)
def test_damaged_queries_are_refused(means, message):
    text = json.dumps([{"name": "a", "means": means, "units": "questions"}])
    with pytest.raises(InputError, match=rf"here: \[0\].{message}"):
        queries_from(text, where="here")
