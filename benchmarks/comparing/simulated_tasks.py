"""Intervals over several tasks, on tables of known truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from benchmarks.comparing.made_up_tables import DRAWS, Shape, draw
from polypool.pipelines.comparison.statistics.simultaneous import with_best
from polypool.pipelines.comparison.statistics.task_means import intervals, mean_of, rank_intervals, sample_of


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Tasks whose rows have a score common to all, and leads of their own in each.

    Attributes:
        shape: of the tables, whose true scores are those common to all tasks.
        tasks: how many.
        between: median deviation of the rows' leads over tasks; their logarithms vary by 0.3 between rows.
        unequal: whether leads of the first task are twice as large as in the others.
    """

    shape: Shape
    tasks: int
    between: float
    unequal: bool = False


_SMALL = Shape(spacing="spread", rows=15, units=200)
TASKS = {
    f"{tasks} tasks, {spacing}, leads of {between:g}{', unequal' * unequal}": Tasks(
        shape=replace(_SMALL, spacing=spacing), tasks=tasks, between=between, unequal=unequal
    )
    for tasks, spacing, between, unequal in (
        (2, "all equal", 2.0, False),
        (3, "all equal", 2.0, False),
        (3, "spread", 2.0, False),
        (3, "all equal", 2.0, True),
        (4, "all equal", 4.0, False),
        (4, "one best", 0.0, False),
    )
}


def in_tasks(of: Tasks, rng: np.random.Generator) -> dict[str, float]:
    """Return what is found in one draw of all tasks."""
    rows, common_R = of.shape.rows, of.shape.true_R
    deviation_R = of.between * np.exp(0.3 * rng.normal(size=rows))
    times_T = np.where((np.arange(of.tasks) == 0) & of.unequal, 2.0, 1.0)
    lead_TR = times_T[:, None] * deviation_R * rng.normal(size=(of.tasks, rows))
    true_TR = common_R + lead_TR
    joints = [draw(of.shape, rng, leads_R=lead_R).joint for lead_R in lead_TR]
    these, labels = mean_of(joints), joints[0].labels
    others = sample_of(labels, np.stack([each.value_R for each in joints]))
    best, true_R = with_best(these, draws=DRAWS), true_TR.mean(axis=0)
    of_others = with_best(others, draws=DRAWS)
    rank_R = np.mean([rankdata(-true_R) for true_R in true_TR], axis=0)
    ranks = rank_intervals(joints, draws=DRAWS)
    return {
        "mean of these": _held(intervals(these), true_R),
        "mean rank": _held(ranks, rank_R),
        "width of a rank": float(np.mean([high - low for low, high in ranks.values()])),
        "best of these": not best[labels[int(true_R.argmax())]].found,
        "rows in their set": sum(not row.found for row in best.values()),
        "lead in others": _held(intervals(others), common_R - common_R.mean()),
        "best of others": not of_others["0"].found,
        "rows in the set of others": sum(not row.found for row in of_others.values()),
    }


def _held(ends: dict[str, tuple[float, float]], true_R: np.ndarray) -> float:
    """Return which part of the intervals hold their true values."""
    return float(
        np.mean([low <= true <= high for (low, high), true in zip(ends.values(), true_R, strict=True)])
    )
