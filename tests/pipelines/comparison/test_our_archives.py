"""Archived runs reproduce the published tables; an independent bootstrap finds the same best rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from places import ROOT
from verbs import exit_code

from docs.generate.results import commands
from polypool.pipelines.commands import compare as module
from polypool.pipelines.comparison import queries
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.comparison.results import read_results
from polypool.pipelines.comparison.statistics import LEVEL, Sample

RESULTS = ROOT / "docs" / "results"
SLOW = ("tuned_all", "tuned_three", "tuned_twelve")


@pytest.mark.parametrize(
    ("table", "words"),
    [pytest.param(*of, marks=[pytest.mark.slow] if of[0] in SLOW else []) for of in commands().items()],
)
def test_recorded_commands_reproduce_published_tables(table, words, tmp_path: Path, home, monkeypatch):
    monkeypatch.chdir(ROOT)
    words[words.index("--out") + 1] = str(tmp_path / "rows.csv")
    assert exit_code(module.main, *words[2:]) == 0
    found, shown = read_results(tmp_path / "rows.csv"), read_results(RESULTS / f"rows.csv#{table}")
    found, shown = (of.drop(columns=["compared_by", "table"]) for of in (found, shown))
    # rounding differs between CPUs, which changes a few of the 10,000 draws
    pd.testing.assert_frame_equal(found, shown, rtol=1e-6, atol=3e-4)


def p_of_best(samples: dict[str, Sample], sign: int, *, draws: int, seed: int) -> dict[str, float]:
    """Return p-values of being the best row, by a parametric bootstrap of the studentised largest lag.

    In each draw all rows are equally good. Each seed of a row adds a normal error; units add errors that are
    correlated over rows. Variances are estimated again from each draw, with as many seeds and units.
    """
    rng, rows = np.random.default_rng(seed), [*samples.values()]
    R, n = len(rows), rows[0].y_Sn.shape[1]
    runs = np.array([len(row.y_Sn) for row in rows])
    own = np.array([np.var(row.y_Sn.mean(1), ddof=1) if len(row.y_Sn) > 1 else np.nan for row in rows])
    several = runs > 1
    freedom = np.where(several, runs - 1, (runs - 1)[several].mean() if several.any() else 1)
    shared = np.average(own[several], weights=(runs - 1)[several]) if several.any() else 0.0
    variance = np.where(several, own, shared)
    centred = [
        row.y_Sn - row.y_Sn.mean(0) - row.y_Sn.mean(1, keepdims=True) + row.y_Sn.mean() for row in rows
    ]
    covariance = np.cov([row.y_Sn.mean(0) for row in rows]) / n
    for a in range(R):
        for b in range(R):
            both = [s for s in rows[a].seeds if s in rows[b].seeds]
            if len(both) > 1:  # shared seeds, centred over these only
                one, two = (
                    x - x.mean(0)
                    for x in (np.stack([centred[r][rows[r].seeds.index(s)] for s in both]) for r in (a, b))
                )
                each = (one * two).sum() / ((len(both) - 1) * (n - 1))
                covariance[a, b] -= each * len(both) / (runs[a] * runs[b] * n)
    value, vector = np.linalg.eigh(covariance)
    root = vector * np.sqrt(value.clip(0))
    covariance = root @ root.T

    def lags(score, of_seeds, units):
        """Return each row's largest lag behind another, in standard deviations, for all draws."""
        largest = np.full(score.shape, -np.inf)
        for a in range(R):
            for b in range(R):
                between = max(covariance[a, a] + covariance[b, b] - 2 * covariance[a, b], 0) * units
                if a != b:
                    deviation = np.sqrt(of_seeds[a] + of_seeds[b] + between)
                    largest[a] = np.maximum(largest[a], (score[b] - score[a]) / deviation)
        return largest

    error, estimated = root @ rng.normal(size=(R, draws)), np.empty((R, draws))
    for r in range(R):
        if several[r]:
            drawn = np.sqrt(variance[r]) * rng.normal(size=(runs[r], draws))
            error[r] += drawn.mean(0)
            estimated[r] = drawn.var(0, ddof=1) / runs[r]
        else:
            error[r] += np.sqrt(variance[r]) * rng.normal(size=draws)
            estimated[r] = variance[r] * rng.chisquare(freedom[r], draws) / freedom[r]
    units = rng.chisquare(n - 1, draws) / (n - 1)
    means = sign * np.array([row.y_Sn.mean() for row in rows])
    observed = lags(means[:, None], (variance / runs)[:, None], np.ones(1))
    p = (lags(error, estimated, units) >= observed).mean(1)
    return dict(zip(samples, p, strict=True))


LARGE = ("coco_mini", "coco_mini_all", "daquar_more", "msrvtt_mini_all")
ARCHIVES = sorted(path.stem for path in (RESULTS / "runs").glob("*.parquet"))


@pytest.mark.parametrize(
    "archive", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in ARCHIVES]
)
def test_best_rows_match_independent_bootstrap(archive, tmp_path: Path, monkeypatch):
    judged = []

    def judge(samples, **options):
        found = production(samples, **options)
        if len(samples) > 1:  # a single row is not ranked
            judged.append((samples, options["sign"], found))
        return found

    production = queries.judge
    monkeypatch.setattr(queries, "judge", judge)
    compare(f"sqlite:///{tmp_path}/none.db", "none", archives=[RESULTS / "runs" / f"{archive}.parquet"])
    assert bool(judged) == (archive != "flickr8k_best")  # which has one row
    for samples, sign, found in judged:
        for label, p in p_of_best(samples, sign, draws=4000, seed=1).items():
            other = found.best[label].p
            error = 4 * np.sqrt(max(p * (1 - p), 1e-3) * (1 / 4000 + 1 / 10_000))
            assert abs(p - other) < error, (label, p, other)
            if abs(p - LEVEL) > error:
                assert (label in found.confidence_set) == (p >= LEVEL)
