"""What more seeds would show: a table for each group, and how many a wished difference needs."""

from __future__ import annotations

import math

from pipelines.comparison.runs.groups import Group, spoken
from pipelines.comparison.statistics.power import MOST, POWER, Planning
from pipelines.comparison.tables.render import ABSENT, Table

_MORE = (2, 3, 5, 10, 20)


def shown_by_seeds(group: Group) -> Table | None:
    """Return the smallest differences that numbers of seeds show; None where seeds cannot be judged."""
    planning = group.judged.planning if group.judged else None
    if planning is None:
        return None
    digits = group.decimals(group.metric.name)
    rows = []
    for seeds in dict.fromkeys([*([planning.runs] if planning.runs > 1 else []), *_MORE]):
        if seeds >= planning.runs:
            now = " (now)" if seeds == planning.runs else ""
            found = [planning.smallest(seeds=seeds, tests=tests) for tests in _tests(planning)]
            rows.append((f"{seeds}{now}", *(_number(group, value, digits) for value in found)))
    floors = [planning.floor(tests=tests) for tests in _tests(planning)]
    rows.append(("any number", *(_number(group, value, digits) for value in floors)))
    each, between = math.sqrt(planning.seeds), math.sqrt(planning.queries)
    return Table(
        title=f"{group.title}: what seeds can show",
        legend=(
            f"smallest difference of {spoken(group.metric)} that a test at the 5 % level finds in {100 * POWER:.0f} of "
            f"100 repetitions with {group.judged.units}, by the mean standard deviations of this table: "
            f"{each:.{digits}f} of a run over seeds, {between:.{digits}f} of a difference over queries",
        ),
        header=("seeds", "a pair alone", *([f"one of {planning.pairs} pairs"] if planning.pairs > 1 else [])),
        rows=tuple(rows),
    )


def _tests(planning: Planning) -> list[int]:
    return [1, planning.pairs] if planning.pairs > 1 else [1]


def _number(group: Group, value: float, digits: int) -> str:
    """Return a difference, or a dash where it is more than lies between chance and the best possible."""
    whole = abs(group.metric.best - group.metric.chance)
    return ABSENT if value > whole else f"{value:.{digits}f}"  # a comparison with NaN is false


def needed(group: Group, wished: float) -> str:
    """Say how many seeds a wished difference needs; empty where the queries of the rows were not compared."""
    if group.judged is None:
        return ""
    start = f"{group.title}: a difference of {wished:g}"
    planning = group.judged.planning
    if planning is None:
        return (
            f"{start}: with one seed a row nobody can say how many it needs; train a second and a third first"
        )
    alone = f"{start} needs {_seeds(planning, wished, 1)}"
    if planning.pairs == 1:
        return alone
    return f"{alone}; as one of {planning.pairs} pairs {_seeds(planning, wished, planning.pairs)}"


def _seeds(planning: Planning, wished: float, tests: int) -> str:
    seeds = planning.needed(wished, tests=tests)
    if seeds is None:
        floor = planning.floor(tests=tests)
        more = "more queries" if floor >= wished else f"more than {MOST:,}"
        return f"{more} rather than more seeds" if floor >= wished else f"{more} seeds"
    more = seeds - planning.runs
    return f"{seeds} seeds a row" + (f", {more} more" if more > 0 else ", which there are")
