"""Scores and ranks over several tasks, with their intervals.

What an interval covers depends on what is drawn anew. The means of the tasks at hand vary with seeds and queries:
`mean_of`. If the tasks are a sample of others like them, the leads of the rows also vary from task to task; the
variance of the leads that are measured includes that of seeds and queries: `sample_of`.

The interval of a rank begins after the rows that are significantly better and ends before those significantly worse,
by the largest difference of the row from any other in any task (Mogstad, Romano, Shaikh and Wilhelm, Review of Economic
Studies 91, 2024). Quantiles of the ranks of draws would be biased towards the middle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polypool.pipelines.comparison.statistics.intervals import LEVEL, Estimate, Variance
from polypool.pipelines.comparison.statistics.joint_scores import Joint
from polypool.pipelines.comparison.statistics.simultaneous import DRAWS, ratio


def mean_of(joints: Sequence[Joint]) -> Joint:
    """Return the means of scores on one scale over tasks, each with the same rows."""
    tasks, first = len(joints), joints[0]
    seeds_TR = np.stack([of.seeds_R for of in joints]) / tasks**2
    seeds_R = seeds_TR.sum(axis=0)
    spread_R = (seeds_TR**2 / np.stack([of.df_R for of in joints])).sum(axis=0)
    return Joint(
        labels=first.labels,
        value_R=np.mean([of.value_R for of in joints], axis=0),
        seeds_R=seeds_R,
        df_R=np.divide(seeds_R**2, spread_R, out=np.ones_like(seeds_R), where=spread_R > 0),
        over_seeds=all(of.over_seeds for of in joints),
        units_RR=np.sum([of.units_RR for of in joints], axis=0) / tasks**2,
        units_df=min(of.units_df for of in joints),
    )


def sample_of(labels: Sequence[str], value_TR: np.ndarray) -> Joint:
    """Return the leads of rows over the mean of all, with their variation over tasks.

    Args:
        labels: of the rows.
        value_TR: scores on one scale, of two tasks at least.
    """
    tasks, rows = value_TR.shape
    lead_TR = value_TR - value_TR.mean(axis=1, keepdims=True)
    return Joint(
        labels=tuple(labels),
        value_R=lead_TR.mean(axis=0),
        seeds_R=lead_TR.var(axis=0, ddof=1) / tasks,
        df_R=np.full(rows, tasks - 1.0),
        over_seeds=True,
        units_RR=np.zeros((rows, rows)),
        units_df=1,
    )


def intervals(joint: Joint) -> dict[str, tuple[float, float]]:
    """Return the ends of the 95 % interval of each score, each alone."""
    queries_R = np.maximum(np.diag(joint.units_RR), 0.0)
    ends = {}
    for row, label in enumerate(joint.labels):
        seeds = Variance(value=float(joint.seeds_R[row]), df=float(joint.df_R[row]))
        queries = Variance(value=float(queries_R[row]), df=joint.units_df)
        ends[label] = Estimate(value=float(joint.value_R[row]), seeds=seeds, queries=queries).interval()
    return ends


def rank_intervals(joints: Sequence[Joint], *, draws: int = DRAWS) -> dict[str, tuple[float, float]]:
    """Return the ends of an interval of each row's mean rank over tasks; it errs in 5 % of cases at most.

    Args:
        joints: scores of the same rows, of which higher ones are better.
        draws: repetitions.
    """
    drawn_T = [joint.draw(draws, seed=task) for task, joint in enumerate(joints)]
    ends = {}
    for row, label in enumerate(joints[0].labels):
        largest_TB = [
            np.abs(joint.studentised(drawn, row)).max(axis=0)
            for joint, drawn in zip(joints, drawn_T, strict=True)
        ]
        reach = np.quantile(np.max(largest_TB, axis=0), 1 - LEVEL)
        better_TR = np.stack(
            [ratio(joint.value_R - joint.value_R[row], joint.deviation_RR[row]) for joint in joints]
        )
        surely_better, surely_worse = (better_TR > reach).sum(axis=1), (better_TR < -reach).sum(axis=1)
        last = len(joints[0].labels) - surely_worse.mean()
        ends[label] = 1 + float(surely_better.mean()), float(last)
    return ends
