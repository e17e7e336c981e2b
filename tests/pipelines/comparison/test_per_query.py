"""How each query did, and what each unit adds to a metric, against explicit loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from query_results import answers, retrieval

from infra.errors import InputError
from pipelines.comparison.runs.per_query import Queries, Units
from tasks.base import QueryMean, QueryMetric


@pytest.mark.parametrize("modality", ["image", "video"])
def test_metrics_follow_from_the_units(modality: str) -> None:
    queries, metrics = retrieval(modality=modality)
    letter = modality[0]
    for name in ("rsum", f"{letter}2t/R1", f"t2{letter}/R10", f"t2{letter}/meanr"):
        units = queries.units(name, metrics[name])
        assert units.score == pytest.approx(metrics[name], abs=1e-9)
    units = queries.units("rsum", metrics["rsum"])
    assert (units.kind, len(units.ids)) == (f"{modality}s with their captions", 30)
    arrays = queries.arrays
    place = list(units.ids).index(arrays[f"{modality}_id"][5])
    own_Q = arrays[f"caption_{modality}_id"] == arrays[f"{modality}_id"][5]
    assert units.count_Pn[:, place].tolist() == [1, 3]
    recalls = [arrays[f"t2{letter}_R{k}"][own_Q].sum() for k in (1, 5, 10)]
    assert units.sum_Pn[1, place] == pytest.approx(100 * sum(recalls))
    assert any(0 < x < 1 for x in arrays[f"t2{letter}_R5"])


def test_accuracies_are_by_the_unit_that_the_run_names() -> None:
    queries, value = answers()
    units = queries.units("accuracy", value)
    assert (units.kind, len(units.ids)) == ("images with their questions", 10)
    assert units.score == pytest.approx(value)
    assert units.sum_Pn[0, 3] == pytest.approx(100 * queries.arrays["accuracy"][15:20].sum())


def test_queries_that_were_not_asked_count_in_no_mean() -> None:
    arrays = {"id": np.array(["a", "b", "b", "c"]), "score": np.array([1.0, np.nan, 3.0, np.nan])}
    mean = QueryMean(scores=("score",), units="id", offset=1.0)
    queries = Queries(arrays=arrays, metrics=(QueryMetric(name="m", means=(mean,), units="things"),))
    units = queries.units("m", 3.0)
    assert (units.ids.tolist(), units.count_Pn.tolist(), units.sum_Pn.tolist()) == (
        ["a", "b"],
        [[1, 1]],
        [[2, 4]],
    )


def test_what_cannot_be_joined_is_refused() -> None:
    queries, metrics = retrieval()
    with pytest.raises(InputError, match=r"its queries give rsum .*, and it logged 1"):
        queries.units("rsum", 1.0)
    with pytest.raises(
        InputError, match="i2t/medr does not follow from its single queries; metrics that do: rsum, i2t"
    ):
        queries.units("i2t/medr", 3.0)
    with pytest.raises(
        InputError, match=r"its i2t_R5 \(29,\), float64, cannot be joined to image_id \(30,\)"
    ):
        replace(queries, arrays={**queries.arrays, "i2t_R5": np.ones(29)}).units("rsum", metrics["rsum"])
    with pytest.raises(InputError, match=r"its i2t_R5 \(30,\), <U1, cannot be joined"):
        replace(queries, arrays={**queries.arrays, "i2t_R5": np.full(30, "x")}).units("i2t/R5", 1.0)
    with pytest.raises(InputError, match="it logged no array caption_image_id, of which its rsum is made"):
        replace(queries, arrays={k: x for k, x in queries.arrays.items() if k != "caption_image_id"}).units(
            "rsum", 1.0
        )
    with pytest.raises(InputError, match="none of its queries has a accuracy"):
        replace(answers()[0], arrays={**answers()[0].arrays, "accuracy": np.full(50, np.nan)}).units(
            "accuracy", 1.0
        )


def test_units_add_up_to_the_metric_as_resampling_them_does() -> None:
    rng = np.random.default_rng(3)
    count_Pn = np.stack([np.ones(150, int), rng.integers(0, 6, 150)])
    sum_Pn = np.stack([rng.random(150), rng.random(150) * count_Pn[1]]) * [[100], [300]]
    units = Units(ids=np.arange(150), sum_Pn=sum_Pn, count_Pn=count_Pn, kind="u")
    assert units.added_n.mean() == pytest.approx(units.score, rel=1e-12)
    drawn_RN = rng.integers(150, size=(4000, 150))
    scores_R = sum(
        total[drawn_RN].sum(axis=1) / count[drawn_RN].sum(axis=1)
        for total, count in zip(sum_Pn, count_Pn, strict=True)
    )
    assert units.added_n.std() / np.sqrt(150) == pytest.approx(scores_R.std(), rel=0.06)
    place = int(np.argmax(count_Pn[1]))  # without it the metric changes by what it added beyond the mean
    rest = np.delete(np.arange(150), place)
    without = replace(units, ids=rest, sum_Pn=sum_Pn[:, rest], count_Pn=count_Pn[:, rest]).score
    assert 150 * (units.score - without) == pytest.approx(units.added_n[place] - units.score, rel=0.06)
