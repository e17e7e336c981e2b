"""`python -m benchmarks.comparing.simulation`: how often the statistics of `compare` are right where truth is known.

Draws tables with a known best row, and counts how often it is in the confidence set, how many rows the set has, how
often a baseline's equals are called different (family-wise), and which part of true differences from it is found,
beside Holm's correction for all pairs; the same over tasks, and for scores near the best possible one. A share p of n
tables is printed with its standard error, sqrt(p (1 - p) / n).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tyro
from scipy.special import ndtri, stdtrit

from benchmarks.comparing.made_up_tables import DRAWS, SPACINGS, Drawn, Shape, draw
from benchmarks.comparing.simulated_tasks import TASKS, in_tasks
from polypool.infra.process.command import command
from polypool.infra.text_tables import ABSENT
from polypool.pipelines.comparison.statistics.intervals import LEVEL, Sample, score
from polypool.pipelines.comparison.statistics.simultaneous import with_baseline, with_best

SHAPES = {
    **{f"{name}, {n} seeds": Shape(spacing=name, seeds=n) for n in (3, 5) for name in SPACINGS},
    "all equal, 3 seeds, rows vary alike": Shape(spacing="all equal", steady=True),
    "all equal, 3 seeds, the best varies 3 x": Shape(spacing="all equal", steady=True, best_varies=3.0),
    "10 rows, all equal, 2 seeds": Shape(spacing="all equal", rows=10, seeds=2, units=300),
    "5 rows, all equal, 3 seeds": Shape(spacing="all equal", rows=5, units=300),
    "5 rows, all equal, 3 seeds, the best varies 3 x": Shape(
        spacing="all equal", rows=5, units=300, steady=True, best_varies=3.0
    ),
    "5 rows, one best, 3 seeds": Shape(spacing="one best", rows=5, units=300),
    "5 rows, all equal, 3 seeds that vary little": Shape(
        spacing="all equal", rows=5, units=300, over_seeds=0.2
    ),
    "all equal, 3 seeds that vary little": Shape(spacing="all equal", over_seeds=0.2),
    "10 rows, all equal, 3 seeds, half with one": Shape(spacing="all equal", rows=10, units=300, single=0.5),
    "10 rows, all equal, 3 seeds, all but one with one": Shape(
        spacing="all equal", rows=10, units=300, single=0.9
    ),
    "2 rows, all equal, 3 seeds": Shape(spacing="all equal", rows=2, units=300),
}


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """How many tables are drawn."""

    tables: int = 2_000
    """Tables of each shape."""
    only: tuple[str, ...] = ()
    """Words that the names of shapes must hold; all shapes if empty."""


def in_set(shape: Shape, rng: np.random.Generator) -> dict[str, float]:
    """Return what is found in one table."""
    drawn = draw(shape, rng)
    found, true_R = drawn.joint, shape.true_R[:-1] - shape.true_R[-1]
    best = with_best(found, draws=DRAWS)
    against = with_baseline(found, found.labels[-1], draws=DRAWS)
    found_R = np.array([of.found for of in against.values()])
    held_R = [of.low <= true <= of.high for of, true in zip(against.values(), true_R, strict=True)]
    holm_RR, equal_R = by_holm(drawn), true_R == 0
    return {
        "best in the set": not best["0"].found,
        "rows in the set": sum(not of.found for of in best.values()),
        "not told from the first (Holm)": shape.rows - int(holm_RR[int(found.value_R.argmax())].sum()),
        "a false alarm": bool(found_R[equal_R].any()) if equal_R.any() else math.nan,
        "all intervals hold": all(held_R),
        "found": found_R[~equal_R].mean() if not equal_R.all() else math.nan,
        "found (Holm)": holm_RR[-1, :-1][~equal_R].mean() if not equal_R.all() else math.nan,
    }


def by_holm(drawn: Drawn) -> np.ndarray:
    """Return which pairs differ by the test of `intervals.difference`, corrected by Holm for all pairs, `(R, R)`."""
    rows, units, over_seeds = drawn.shape.rows, drawn.shape.units, drawn.joint
    one, other = np.triu_indices(rows, 1)
    seeds_R, df_R, cov_RR = over_seeds.seeds_R, over_seeds.df_R, drawn.units_RR - drawn.residual_RR
    seeds_P = seeds_R[one] + seeds_R[other]
    df_P = seeds_P**2 / (seeds_R[one] ** 2 / df_R[one] + seeds_R[other] ** 2 / df_R[other])
    queries_P = np.maximum(cov_RR[one, one] + cov_RR[other, other] - 2 * cov_RR[one, other], 0.0)
    value_P = np.abs(drawn.value_R[one] - drawn.value_R[other])
    found_P = np.zeros(len(one), bool)
    while not found_P.all():
        level = LEVEL / (len(one) - found_P.sum())
        reach_P = stdtrit(df_P, level / 2) ** 2 * seeds_P + stdtrit(units - 1, level / 2) ** 2 * queries_P
        more_P = value_P**2 > reach_P
        if (more_P <= found_P).all():
            break
        found_P |= more_P
    found_RR = np.zeros((rows, rows), bool)
    found_RR[one, other] = found_RR[other, one] = found_P
    return found_RR


def near_best(rng: np.random.Generator, *, right: float, seeds: int, units: int) -> dict[str, float]:
    """Return whether the interval of an accuracy near 100 % holds it, with its end and without it."""
    hard_n, of_seeds_S = rng.normal(size=units), 0.1 * rng.normal(size=seeds)
    level = np.sqrt(1.01 + 0.5) * float(ndtri(right))
    y_Sn = 100.0 * (level + of_seeds_S[:, None] + hard_n + np.sqrt(0.5) * rng.normal(size=(seeds, units)) > 0)
    row = Sample(seeds=tuple(map(str, range(seeds))), y_Sn=y_Sn)
    estimate, true = score(row), 100 * right
    plain, ended = estimate.interval(), estimate.interval(best=100.0)
    return {
        "plain": plain[0] <= true <= plain[1],
        "beyond 100": plain[1] > 100,
        "ended": ended[0] <= true <= ended[1],
    }


def table_of(
    shapes: dict[str, Callable[[np.random.Generator], dict[str, float]]], *, tables: int
) -> Sequence[str]:
    """Return the lines of a Markdown table of means over draws."""
    lines: list[str] = []
    for name, once in shapes.items():
        rng, started = np.random.default_rng(1), time.process_time()
        drawn = [once(rng) for _ in range(tables)]
        if not lines:
            lines += [f"| tables | {' | '.join(drawn[0])} |", f"|---|{'---:|' * len(drawn[0])}"]
            print(*lines, sep="\n")
        entries = []
        for key in drawn[0]:
            mean = float(np.mean([of[key] for of in drawn]))
            if math.isnan(mean):
                entries.append(ABSENT)
            elif key.startswith(("rows", "not told", "width")):
                entries.append(f"{mean:.1f}")
            else:
                entries.append(f"{100 * mean:.1f} ± {100 * math.sqrt(mean * (1 - mean) / tables):.1f}")
        lines.append(f"| {name} | {' | '.join(entries)} |")
        print(lines[-1], f"<!-- {time.process_time() - started:.0f} s -->", flush=True)
    return lines


@command
def main() -> None:
    options = tyro.cli(
        SimulationOptions, prog="python -m benchmarks.comparing.simulation", description=__doc__
    )

    def chosen(shapes: dict) -> dict:
        return {name: of for name, of in shapes.items() if all(word in name for word in options.only)}

    one = {name: lambda rng, of=of: in_set(of, rng) for name, of in SHAPES.items()}
    several = {name: lambda rng, of=of: in_tasks(of, rng) for name, of in TASKS.items()}
    ends = {
        f"{100 * right:g} % right of {units} units, {seeds} seeds": lambda rng, of=(right, seeds, units): (
            near_best(rng, right=of[0], seeds=of[1], units=of[2])
        )
        for right, seeds, units in ((0.983, 3, 240), (0.983, 5, 1_000), (0.9, 3, 240), (0.98, 3, 60))
    }
    for shapes in (one, several, ends):
        if chosen(shapes):
            table_of(chosen(shapes), tables=options.tables)
            print()


if __name__ == "__main__":
    main()
