"""Scores of single queries, summed by unit for the tests of differences.

Each run records its arrays of scores and units, and how metrics follow from them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.process.progress import Progress
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.rows import Group, doubts
from polypool.pipelines.comparison.statistics import LEAST, Sample, judge, score
from polypool.tasks.adapter import QueryMetric
from polypool.tasks.scoring.records import metrics_from, queries_from, query_files


@dataclass(frozen=True, kw_only=True)
class Units:
    """The scores of one run's queries by units.

    Attributes:
        ids: of the n units, sorted.
        sum_Pn: sum of scores by part, such as a direction of retrieval, and unit.
        count_Pn: number of queries.
        kind: of units, such as `images with their captions`.
    """

    ids: np.ndarray
    sum_Pn: np.ndarray
    count_Pn: np.ndarray
    kind: str

    @property
    def score(self) -> float:
        """The metric over all queries."""
        return float((self.sum_Pn.sum(axis=1) / self.count_Pn.sum(axis=1)).sum())

    @property
    def added_n(self) -> np.ndarray:
        """The contribution of each unit to the metric; the metric is their mean.

        A part of the metric is a ratio of two sums over units. A unit contributes the metric plus, for each part, its
        linear term: the sum of its queries' scores minus their number times the mean score, over the mean number of
        queries of a unit.
        """
        mean_P = self.sum_Pn.sum(axis=1) / self.count_Pn.sum(axis=1)
        share_P = self.count_Pn.mean(axis=1)
        return mean_P.sum() + ((self.sum_Pn - mean_P[:, None] * self.count_Pn) / share_P[:, None]).sum(axis=0)


@dataclass(frozen=True, kw_only=True)
class Queries:
    """The record of a run's single queries.

    Attributes:
        arrays: ids, ranks and scores, one per query.
        metrics: how metrics follow from them.
    """

    arrays: Mapping[str, np.ndarray]
    metrics: tuple[QueryMetric, ...]

    def units(self, metric: str, value: float) -> Units:
        """Return the scores behind a metric by unit; queries without a score are ignored.

        Args:
            metric: its name.
            value: as logged by the run.

        Raises:
            InputError: the metric does not follow from the queries, arrays are missing or do not match, no query has a
                score, or the metric computed from them is not the logged one.
        """
        described = next((known for known in self.metrics if known.name == metric), None)
        if described is None:
            named = ", ".join(known.name for known in self.metrics) or "none"
            raise InputError(f"{metric} does not follow from its single queries; metrics that do: {named}")
        scores, ids = [], []
        for mean in described.means:
            if missing := [name for name in (*mean.scores, mean.units) if name not in self.arrays]:
                raise InputError(f"it logged no array {missing[0]} for its {metric}")
            unit_Q, score_XQ = self.arrays[mean.units], [self.arrays[name] for name in mean.scores]
            for name, score_Q in zip(mean.scores, score_XQ, strict=True):
                if score_Q.dtype.kind not in "biuf" or score_Q.shape != unit_Q.shape:
                    raise InputError(
                        f"its {name} {score_Q.shape}, {score_Q.dtype}, cannot be joined to {mean.units} "
                        f"{unit_Q.shape}: expected a number for each"
                    )
            total_Q = np.sum(score_XQ, axis=0, dtype=float)
            scored_Q = np.isfinite(total_Q)
            if not scored_Q.any():
                raise InputError(f"none of its queries has a {' + '.join(mean.scores)}")
            scores.append(mean.factor * total_Q[scored_Q] + mean.offset)
            ids.append(unit_Q[scored_Q])
        known, unit_PQ, counts = _grouped(tuple((unit_Q.dtype.str, unit_Q.tobytes()) for unit_Q in ids))
        sums = [
            np.bincount(index_Q, weights=score_Q, minlength=len(known))
            for score_Q, index_Q in zip(scores, unit_PQ, strict=True)
        ]
        units = Units(ids=known, sum_Pn=np.stack(sums), count_Pn=counts, kind=described.units)
        if not math.isclose(units.score, value, rel_tol=1e-4, abs_tol=1e-3):
            raise InputError(f"its queries give {metric} {units.score:.4g}, and it logged {value:.4g}")
        return units


@functools.lru_cache(maxsize=8)
def _grouped(units: tuple[tuple[str, bytes], ...]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the ids of units, the index of each query's unit by part, and the numbers of queries by part and unit.

    Args:
        units: dtype and bytes of the ids of each part's queries, the same in all runs of a table (cached).
    """
    parts = [np.frombuffer(ids, dtype) for dtype, ids in units]
    ids, index_Q = np.unique(np.concatenate(parts), return_inverse=True)
    unit_PQ = np.split(index_Q, np.cumsum([len(part) for part in parts])[:-1])
    return ids, unit_PQ, np.stack([np.bincount(part, minlength=len(ids)) for part in unit_PQ])


Read = Callable[[RunRecord, str], Queries]
"""Returns a run's queries of a protocol, or raises InputError."""


def read_queries(path: Callable[[str], Path], run: str, protocol: str) -> Queries:
    """Read the queries of a run.

    Args:
        path: returns the local path of an artifact of the run by its name.
        run: its id, for messages.
        protocol: of its scores.

    Raises:
        InputError: files are missing or damaged.
    """
    arrays, described = query_files(protocol)
    return Queries(
        arrays=stored_arrays(path(arrays)),
        metrics=queries_from(path(described).read_text(), where=f"run {run}: {described}"),
    )


def stored_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz` file, without unpickling.

    Raises:
        InputError: the file or an array cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # zipfile, zlib and numpy raise several kinds
        raise InputError(f"{path} cannot be read: {error}") from error


def run_doubts(
    run: str, tags: Mapping[str, str], metrics: Mapping[str, float], path: Callable[[str], Path]
) -> list[str]:
    """Return reasons to distrust the test score of a run; empty without any.

    Args:
        run: its id, for messages.
        tags, metrics: of the run.
        path: returns the local path of an artifact of the run by its name.

    Raises:
        InputError: its records are damaged.
    """
    protocol = tags.get("protocol", "")
    described = metrics_from(tags, protocol, run=run, read=lambda name: path(name).read_bytes())
    value = metrics.get(f"{protocol}/{described[0].name}") if described else None
    if value is None:
        return []
    metric, ends, size = described[0], (value, value), 0
    with suppress(InputError):  # the metric has no per-query scores
        units = read_queries(path, run, protocol).units(metric.name, value)
        size = len(units.ids)
        if size >= LEAST:
            ends = score(Sample(seeds=("",), y_Sn=units.added_n[None])).interval(best=metric.best)
    return [*doubts(metric, {"the test score": ends}, units=size)]


def with_differences(
    group: Group, read: Read, *, baseline: str = "", pairs: bool = False
) -> tuple[Group, list[str]]:
    """Return a group with tests of its differences, and notes on rows that could not be compared.

    Args:
        group: the rows.
        read: returns the queries of their runs.
        baseline: label of the row to compare the others with; empty for none.
        pairs: test all pairs, too.
    """
    rows, name = [row for row in group.known if row.runs], group.metric.name
    samples: dict[str, Sample] = {}
    notes, first = [], None
    for row in Progress(rows, desc=f"queries of {group.title}", unit="row", leave=False):
        try:
            values = zip(row.runs, row.values[name], strict=True)
            units = [read(run, group.protocol).units(name, value) for run, value in values]
            for known, whose in ((units[0], "its runs were"), (first or units[0], "it was")):
                if not all(
                    np.array_equal(of.ids, known.ids) and np.array_equal(of.count_Pn, known.count_Pn)
                    for of in units
                ):
                    raise InputError(f"{whose} scored on other queries than the rows or runs before it")
            first = first or units[0]
            samples[row.label] = Sample(seeds=row.seeds, y_Sn=np.stack([of.added_n for of in units]))
        except InputError as error:
            notes.append(f"{row.label} ({group.protocol}) is not compared by its queries: {error}")
    if len(rows) < 2:
        notes = []  # nothing to compare
    if first is None:
        return group, notes
    group = replace(group, units=len(first.ids))
    try:
        judged = judge(
            samples,
            units=f"{len(first.ids):,} {first.kind}",
            sign=group.metric.sign,
            best=group.metric.best,
            baseline=baseline,
            pairs=pairs,
        )
    except InputError as error:
        none = f"{group.title}: differences are not tested: {error}"
        return group, [*notes, none] if len(rows) > 1 else []
    return replace(group, judged=judged), notes
