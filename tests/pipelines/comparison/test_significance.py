"""Per-query results and the paired bootstrap, against explicit loops."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from query_results import answers, renamed, retrieval

from infra.errors import InputError
from pipelines.comparison.runs.per_query import Queries, load_arrays, mean_units
from pipelines.comparison.statistics.significance import Bootstrap, Difference, paired_bootstrap
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


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    arrays = retrieval()[0].arrays
    np.savez_compressed(tmp_path / "whole.npz", **arrays)
    assert load_arrays(tmp_path / "whole.npz").keys() == arrays.keys()
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    (tmp_path / "objects.npz").write_bytes(b"")
    np.savez(tmp_path / "objects.npz", accuracy=np.array([{}], dtype=object))
    for name in ("cut.npz", "objects.npz"):
        with pytest.raises(InputError, match=rf"{name} cannot be read"):
            load_arrays(tmp_path / name)


def test_seeds_are_averaged_query_by_query() -> None:
    (one, a), (two, b) = retrieval(seed=1), retrieval(seed=2)
    two = renamed(two, one.arrays["image_id"])
    units = [queries.units("rsum", metrics["rsum"]) for queries, metrics in ((one, a), (two, b))]
    mean = mean_units(units)
    assert mean.score == pytest.approx((a["rsum"] + b["rsum"]) / 2)
    assert np.allclose(mean.sum_Pn, (units[0].sum_Pn + units[1].sum_Pn) / 2)
    with pytest.raises(InputError, match="different queries"):
        mean_units([units[0], replace(units[1], ids=units[1].ids[::-1])])


def test_intervals_are_those_of_an_explicit_loop() -> None:
    (first, a), (second, b) = retrieval(seed=3), retrieval(seed=4, shift=0.3)
    second = renamed(second, first.arrays["image_id"])
    runs = [queries.units("rsum", metrics["rsum"]) for queries, metrics in ((first, a), (second, b))]
    found = paired_bootstrap(
        np.stack([run.sum_Pn for run in runs]),
        runs[0].count_Pn,
        labels="ab",
        units="u",
        resamples=300,
        seed=7,
    )
    drawn_RN = np.random.default_rng(7).integers(30, size=(300, 30))
    differences = []
    for drawn_N in drawn_RN:
        scores = []
        for run in runs:
            parts = zip(run.sum_Pn, run.count_Pn, strict=True)
            scores.append(sum(total[drawn_N].sum() / count[drawn_N].sum() for total, count in parts))
        differences.append(scores[0] - scores[1])
    one = found.difference("a", "b")
    assert one.value == pytest.approx(a["rsum"] - b["rsum"], abs=1e-3)
    assert (one.low, one.high) == pytest.approx(tuple(np.quantile(differences, (0.025, 0.975))), abs=1e-3)
    back = found.difference("b", "a")
    assert (back.value, back.low, back.high) == (-one.value, -one.high, -one.low)
    assert found.difference("a", "c") is None


def test_pairing_finds_what_unpaired_intervals_would_not() -> None:
    rng = np.random.default_rng(0)
    hard_n = 50 * rng.random(400)
    sum_APn = np.stack([hard_n + 1 + rng.normal(0, 2, 400), hard_n])[:, None]
    found = paired_bootstrap(sum_APn, np.ones((1, 400), int), labels="ab", units="u").difference("a", "b")
    assert found.significant
    assert 0.7 < found.low < found.value < found.high < 1.3
    expected = 1.96 * (sum_APn[0, 0] - sum_APn[1, 0]).std() / 20  # of a mean of 400 differences
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.08)


def test_equal_scores_do_not_differ_and_few_units_say_nothing() -> None:
    same = np.ones((2, 1, 40))
    found = paired_bootstrap(same, np.ones((1, 40), int), labels="ab", units="u")
    assert found.difference("a", "b") == Difference(value=0.0, low=0.0, high=0.0)
    assert not found.difference("a", "b").significant
    with pytest.raises(InputError, match="9 queries are too few"):
        paired_bootstrap(same[..., :9], np.ones((1, 9), int), labels="ab", units="u")


def test_draws_repeat_and_many_queries_take_seconds() -> None:
    rng = np.random.default_rng(1)
    sum_APn, count_Pn = rng.random((10, 2, 5000)), np.full((2, 5000), 5)
    options = {"labels": "abcdefghij", "units": "u"}
    started = time.process_time()
    found = paired_bootstrap(sum_APn, count_Pn, **options)
    assert time.process_time() - started < 10
    assert isinstance(found, Bootstrap)
    assert len(found.pairs) == 45
    few = {"resamples": 50, **options}
    assert (
        paired_bootstrap(sum_APn, count_Pn, **few).pairs == paired_bootstrap(sum_APn, count_Pn, **few).pairs
    )
