"""Scores of different tasks on one scale: 0 for chance, 100 for the best possible."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping


def best_possible(metric: str) -> float:
    """Return the largest value that a metric can have: 600 for a sum of six recalls, 100 for one, or for an accuracy.

    NaN where it is not known.
    """
    if metric == "rsum":
        return 600.0
    return 100.0 if re.fullmatch(r"accuracy|(.*/)?R\d+", metric) else math.nan


def chance_normalised(value: float, *, chance: float, best: float) -> float:
    """Return where a value lies between chance, 0, and the best possible, 100; NaN where one of them is not known."""
    return 100.0 * (value - chance) / (best - chance)


def headline(metrics: Mapping[str, float], metric: str) -> dict[str, float]:
    """Return the main score of an evaluation under names that all tasks share, so that their runs line up.

    Args:
        metrics: of the evaluation, without the protocol.
        metric: the main one.

    Returns:
        `test/score`, and `test/chance` and `test/chance_normalised` where chance and the best possible are known.
    """
    if metric not in metrics:
        return {}
    value, chance = metrics[metric], metrics.get(f"chance_{metric}", math.nan)
    found = {"test/score": value, "test/chance": chance}
    found["test/chance_normalised"] = chance_normalised(value, chance=chance, best=best_possible(metric))
    return {name: number for name, number in found.items() if not math.isnan(number)}
