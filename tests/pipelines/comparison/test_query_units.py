from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from query_results import retrieval

from polypool.infra.errors import InputError
from polypool.pipelines.comparison.queries import Queries, Units, stored_arrays
from polypool.tasks.adapter import QueryMean, QueryMetric


@pytest.mark.parametrize("modality", ["image", "video"])
def test_metrics_are_recomputed_from_units(modality):
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


def test_unscored_queries_are_ignored():
    arrays = {"id": np.array(["a", "b", "b", "c"]), "score": np.array([1.0, np.nan, 3.0, np.nan])}
    mean = QueryMean(scores=("score",), units="id", offset=1.0)
    queries = Queries(arrays=arrays, metrics=(QueryMetric(name="m", means=(mean,), units="things"),))
    units = queries.units("m", 3.0)
    assert units.ids.tolist() == ["a", "b"]
    assert (units.count_Pn.tolist(), units.sum_Pn.tolist()) == ([[1, 1]], [[2, 4]])


@pytest.mark.parametrize(
    ("metric", "changed", "message"),
    [
        ("rsum", {}, r"its queries give rsum .*, and it logged 1"),
        ("i2t/medr", {}, "i2t/medr does not follow from its single queries; metrics that do: rsum, i2t"),
        (
            "rsum",
            {"i2t_R5": np.ones(29)},
            r"its i2t_R5 \(29,\), float64, cannot be joined to image_id \(30,\)",
        ),
        ("i2t/R5", {"i2t_R5": np.full(30, "x")}, r"its i2t_R5 \(30,\), <U1, cannot be joined"),
        ("rsum", {"caption_image_id": None}, "no array caption_image_id for its rsum"),
        ("i2t/R5", {"i2t_R5": np.full(30, np.nan)}, "none of its queries has a i2t_R5"),
    ],
)
def test_inconsistent_query_arrays_are_refused(metric, changed, message):
    queries, _ = retrieval()
    arrays = {name: x for name, x in {**queries.arrays, **changed}.items() if x is not None}
    with pytest.raises(InputError, match=message):
        replace(queries, arrays=arrays).units(metric, 1.0)


def test_unit_contributions_match_bootstrap_and_jackknife():
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
    place = int(np.argmax(count_Pn[1]))  # leaving it out removes its contribution
    rest = np.delete(np.arange(150), place)
    without = replace(units, ids=rest, sum_Pn=sum_Pn[:, rest], count_Pn=count_Pn[:, rest]).score
    assert 150 * (units.score - without) == pytest.approx(units.added_n[place] - units.score, rel=0.06)


def test_truncated_or_pickled_arrays_are_refused(tmp_path):
    arrays = retrieval()[0].arrays
    np.savez_compressed(tmp_path / "whole.npz", **arrays)
    stored = stored_arrays(tmp_path / "whole.npz")
    assert stored.keys() == arrays.keys()
    assert all(np.array_equal(stored[name], arrays[name]) for name in arrays)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    np.savez(tmp_path / "objects.npz", accuracy=np.array([{}], dtype=object))
    for name in ("cut.npz", "objects.npz"):
        with pytest.raises(InputError, match=rf"{name} cannot be read"):
            stored_arrays(tmp_path / name)
