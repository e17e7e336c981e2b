from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from records import VIDEO, blocks_of, grid, read, run, vqa
from toy import toy_run

from polypool.infra.text_tables import as_text
from polypool.infra.tracking import RunRecord, find_runs, tracking_uri
from polypool.pipelines.comparison import tables
from polypool.pipelines.comparison.grouping import arranged
from polypool.pipelines.comparison.results import results
from polypool.pipelines.models.run_evaluation import track_ensemble
from polypool.pipelines.recipes.load import Ensemble
from polypool.pipelines.training.record import headline
from polypool.tasks.adapter import Evaluation, Metric

MAE = Metric(name="mae", higher_is_better=False, best=0.0, chance=12.0, unit="years")
F1 = Metric(name="f1", best=1.0, chance=0.25)
ACCURACY = Metric(name="accuracy", best=100.0, chance=50.0, unit="%")
AGES = {"task": "ages", "dataset": "faces", "recipe": "faces", "protocol": "ages"}
ERRORS = {"mean": 9.0, "gpo": 1.0, "max": 5.0}


def ages(aggregator: str, seed: int = 0) -> RunRecord:
    metrics = {"ages/mae": ERRORS[aggregator] + seed}
    return run(aggregator, seed, metrics=metrics, records={"ages": [MAE]}, **AGES)


def test_lower_is_better_metric_ranks_small_errors_first():
    runs = [ages(name, seed) for name in ERRORS for seed in (0, 1)]
    (group,) = blocks_of(*runs)
    assert [row.label for row in group.rows] == ["gpo", "max", "mean"]
    text = as_text(tables.scores(group))
    assert "sorted by mae in years, lower is better; mean" in text
    assert "chance mae 12.0" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["gpo", "max", "mean"]

    accuracy = {"mean": 30.0, "gpo": 40.0, "max": 35.0}
    found = grid(*runs, *(vqa(name, 0, value) for name, value in accuracy.items()))
    assert found.aggregators == ("gpo", "max", "mean")
    assert found.means["gpo"] == pytest.approx((100 * (12 - 1.5) / 12 + 100 * (40 - 20) / 80) / 2)
    assert (found.aggregators, found.columns[0].best.label) == (("gpo", "max", "mean"), "gpo")
    assert results([group])["chance_normalised"][0] == pytest.approx(87.5)


def test_shade_spans_chance_to_best_or_observed_range():
    values = np.array([9.0, np.nan, 1.0, 5.0])
    known = Metric(name="m", best=17.0, chance=5.0)
    np.testing.assert_allclose(known.shade(values), [4 / 12, np.nan, 0, 0])
    error = replace(known, higher_is_better=False, best=0.0)
    np.testing.assert_allclose(error.shade(values), [0, np.nan, 4 / 5, 0])
    unknown = Metric(name="m")
    np.testing.assert_array_equal(unknown.shade(values), [1, np.nan, 0, 0.5])
    np.testing.assert_array_equal(replace(unknown, higher_is_better=False).shade(values), [0, np.nan, 1, 0.5])
    assert unknown.shade(np.array([2.0, 2.0])).tolist() == [0.5, 0.5]


def test_table_uses_task_metric_and_column_order():
    values = {"gpo": (0.8, 60.0), "mean": (0.5, 90.0)}
    aside = Metric(name="macro", in_tables=False)
    records = {"t": [F1, ACCURACY, aside]}
    runs = [
        run(name, metrics={"t/accuracy": a, "t/f1": f, "t/macro": f}, records=records, protocol="t")
        for name, (f, a) in values.items()
    ]
    (group,) = blocks_of(*runs)
    assert [row.label for row in group.rows] == ["gpo", "mean"]
    assert group.columns == ("f1", "accuracy")
    assert as_text(tables.scores(group)).splitlines()[-1].split()[2] == "0.500"
    (group,), _ = arranged(runs, experiment="x", metric="macro", read=read)
    assert group.columns == ("macro", "f1", "accuracy")


def test_headline_uses_primary_metric_of_task():
    metrics = {"f1": 0.4, "accuracy": 90.0}
    evaluation = Evaluation(protocol="t", metrics=metrics, primary=F1, others=(ACCURACY,))
    normalised = {"test/chance": 0.25, "test/chance_normalised": pytest.approx(20.0)}
    assert headline(evaluation) == {"test/score": 0.4, **normalised}
    error = replace(evaluation, metrics={"mae": 3.0}, primary=MAE)
    assert headline(error)["test/chance_normalised"] == pytest.approx(75.0)
    assert headline(replace(evaluation, primary=Metric(name="f1"))) == {"test/score": 0.4}
    assert headline(replace(evaluation, metrics={"questions": 5.0})) == {}


PUBLISHED = {"msrvtt-full/rsum": 174.7, "msrvtt-full/v2t/R1": 20.0, "other/rsum": 1.0}


def video(aggregator: str, rsum: float, **params: str) -> RunRecord:
    metrics = {"msrvtt-full/rsum": rsum, "msrvtt-full/v2t/R1": 18.0}
    tags = VIDEO | {"recipe": "msrvtt_vse_infinity", "protocol": "msrvtt-full"}
    made = run(aggregator, metrics=metrics, **tags)
    return replace(
        made, params={**made.params, "published": json.dumps(PUBLISHED), "source": "table 4"} | params
    )


def test_published_table_compares_reproduced_rows():
    (group,) = blocks_of(video("gpo", 170.0), video("max", 180.0, published="{}"))
    assert {row.label: dict(row.published) for row in group.rows} == {
        "max": {},
        "gpo": {"rsum": 174.7, "v2t/R1": 20.0},
    }
    odd = replace(video("gpo", 1.0, **{"optim.epochs": "1"}), run_id="odd")
    rows = blocks_of(video("gpo", 171.0), video("max", 1.0), odd)[0].rows
    assert {row.label for row in rows if row.published} == {"gpo", "max"}, (
        "a run with other epochs must have no published numbers"
    )
    table = tables.published(group)
    assert table.rows == (
        ("gpo", "rsum", "170.0", "174.7", "-4.7"),
        ("gpo", "v2t R1", "18.0", "20.0", "-2.0"),
    )
    assert "table 4: msrvtt-full/rsum 174.7" in table.notes[0]
    scores = results([group]).query("decides")
    assert scores.set_index("aggregator")["published"].dropna().to_dict() == {"gpo": 174.7}
    assert tables.published(blocks_of(run("gpo"))[0]) is None


def test_ensemble_records_published_target(home):
    aims = {"protocol": "whole", "published": {"whole/rsum": 3.0}, "source": "table 1"}
    recipe = Ensemble(recipe="two", members=("x", "y"), **aims)
    track_ensemble([toy_run()] * 2, "whole", ensemble=recipe)
    (record,) = find_runs(tracking_uri(home), "polypool", finished=False)
    assert (record.tags["recipe"], record.params["source"]) == ("two", "table 1")
    assert json.loads(record.params["published"]) == {"whole/rsum": 3.0}


def test_mixed_protocol_versions_are_noted():
    first, second = (run(name, **{"protocol_version.whole": n}) for name, n in (("gpo", "1"), ("mean", "2")))
    _, notes = arranged([first, run("max"), second], experiment="x", read=read)
    assert notes == (
        "image_text · coco_mini · whole: scored by versions 1 and 2 of the protocol, whose numbers cannot be compared; "
        "`polypool evaluate RUN_ID` scores a run by the present one",
    )
    assert arranged([first, run("max")], experiment="x", read=read)[1] == ()
