"""Simultaneous comparisons of rows: the confidence set of the best, and each row against a baseline.

Differences are taken in their standard deviations. A row leaves the confidence set where its largest lag behind another
row exceeds what 95 % of repetitions of the table give if all rows are equally good (`joint_scores`). The best row is
then in the set with a probability of at least 95 %. The number of rows in the set needs no correction, as only the test
of the one row that is the best can err. The intervals of the differences from the best of the others end at 0 for rows
outside the set.

Against a baseline, the largest difference of either sign counts.

Sources: Hsu, "Constrained simultaneous confidence intervals for multiple comparisons with the best", Annals of
Statistics 12, 1984; Dunnett, "A multiple comparison procedure for comparing several treatments with a control", JASA
50, 1955.
"""

from __future__ import annotations

import math

import numpy as np

from polypool.pipelines.comparison.statistics.intervals import LEVEL, Difference
from polypool.pipelines.comparison.statistics.joint_scores import Joint

DRAWS = 10_000


def with_best(joint: Joint, *, sign: int = 1, draws: int = DRAWS) -> dict[str, Difference]:
    """Return the difference of each row from the best of the others; p is that of its being the best.

    Args:
        joint: two rows at least.
        sign: 1 where higher scores are better, else -1.
        draws: repetitions.
    """
    lead_RR, rows = sign * (joint.value_R[:, None] - joint.value_R), len(joint.labels)
    drawn, deviation_RR = joint.draw(draws), joint.deviation_RR
    p_R, reach_R = np.empty(rows), np.empty(rows)
    for row in range(rows):
        others = np.arange(rows) != row
        behind = ratio(-lead_RR[row], deviation_RR[row])[others].max()
        drawn_B = np.sort(joint.studentised(drawn, row)[others].max(axis=0))
        p_R[row], reach_R[row] = _p(drawn_B, behind), _reach(drawn_B)
    in_set_R = p_R >= LEVEL
    found = {}
    for row, label in enumerate(joint.labels):
        others = np.arange(rows) != row
        best = int(np.flatnonzero(others)[lead_RR[row][others].argmin()])
        high = (lead_RR[row] + reach_R[row] * deviation_RR[row])[others].min() if in_set_R[row] else 0.0
        low = (lead_RR[row] - reach_R * deviation_RR[row])[others & in_set_R].min(initial=0.0)
        ends = sorted((sign * float(low), sign * max(float(high), 0.0)))
        value = sign * float(lead_RR[row, best])
        found[label] = Difference(
            value=value, low=ends[0], high=ends[1], p=float(p_R[row]), over_seeds=joint.over_seeds
        )
    return found


def with_baseline(joint: Joint, baseline: str, *, draws: int = DRAWS) -> dict[str, Difference]:
    """Return the difference of each other row from one, with simultaneous 95 % intervals and p-values."""
    row = joint.labels.index(baseline)
    others = np.flatnonzero(np.arange(len(joint.labels)) != row)
    deviation_R = joint.deviation_RR[row]
    drawn_B = np.sort(np.abs(joint.studentised(joint.draw(draws), row)).max(axis=0))
    reach = _reach(drawn_B)
    value_R = joint.value_R - joint.value_R[row]
    p_R = _p(drawn_B, np.abs(ratio(value_R, deviation_R)))
    return {
        joint.labels[other]: Difference(
            value=float(value_R[other]),
            low=float(value_R[other] - reach * deviation_R[other]),
            high=float(value_R[other] + reach * deviation_R[other]),
            p=float(p_R[other]),
            over_seeds=joint.over_seeds,
        )
        for other in others
    }


def ratio(value_R: np.ndarray, deviation_R: np.ndarray) -> np.ndarray:
    """Return values in deviations; infinite where these are 0, unless the value is 0, too."""
    certain_R = np.where(value_R == 0, 0.0, np.copysign(np.inf, value_R))
    return np.where(deviation_R > 0, value_R / np.where(deviation_R > 0, deviation_R, 1.0), certain_R)


def _reach(sorted_B: np.ndarray) -> float:
    """Return what at most 5 % of draws exceed, of which the one that is tested counts as one more."""
    return float(sorted_B[math.ceil((1 - LEVEL) * (len(sorted_B) + 1)) - 1])


def _p(sorted_B: np.ndarray, found: np.ndarray | float) -> np.ndarray:
    """Return how often draws reach what was found, which counts as one more draw."""
    return (1 + len(sorted_B) - np.searchsorted(sorted_B, found)) / (1 + len(sorted_B))
