"""Tables of the differences between rows, of their costs, and of what more seeds would show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from polypool.infra.compute.cost import UNIT
from polypool.infra.text_tables import ABSENT, Table
from polypool.pipelines.comparison.groups import Costs, Group, Row
from polypool.pipelines.comparison.statistics.intervals import LEVEL
from polypool.pipelines.comparison.statistics.power import MOST, POWER, Planning
from polypool.pipelines.comparison.statistics.significance import Difference, Judged

_MORE = (2, 3, 5, 10, 20)  # seeds
BY_QUERIES = "by queries"
MARKS = {"no": "*", BY_QUERIES: "?"}
"""The sign after a score, by the verdict on its difference from the best; a blank after others."""


def verdict(difference: Difference | None) -> str:
    """Return whether a difference is significant, in words; a dash if it was not judged."""
    if difference is None:
        return ABSENT
    return {None: BY_QUERIES, True: "yes", False: "no"}[difference.significant]


def mark(group: Group, row: Row, best: str) -> str:
    """Return the sign after the score of a row, for its difference from the row with the label `best`."""
    return MARKS.get(verdict(group.judged.difference(row.label, best) if group.judged else None), " ")


def legend_of_marks(group: Group) -> Iterator[str]:
    """Yield what the signs after scores mean."""
    if judged := group.judged:
        best = judged.labels[0]
        yield f"*: no significant difference from {best} over seeds and {judged.units}, {_corrected(judged)}"
        if any(mark(group, row, best) == MARKS[BY_QUERIES] for row in group.rows):
            yield f"?: the queries tell it from {best}; {ONE_SEED}"


def _corrected(judged: Judged) -> str:
    return f"corrected by Holm for {judged.tests} pair{'s' * (judged.tests > 1)}"


ONE_SEED = "one seed does not show what another would change"


def differences(group: Group, *, costs: bool = True) -> Table | None:
    """Return how far a group's rows are from the best, and what they cost; None if neither is known."""
    known = [
        name
        for name in _COSTS
        if costs and not all(math.isnan(getattr(row.costs, name)) for row in group.rows)
    ]
    judged, header, legend = group.judged, ["aggregator"], []
    if judged is None and not known:
        return None
    if judged is not None:
        header += [group.ranked_by.name, "95 % interval", "difference", *_JUDGED]
        legend.append(f"difference of {group.ranked_by.label} from {judged.labels[0]}; {_method(judged)}")
    if known:
        legend.append("; ".join(_COSTS[name] for name in known))
    rows = []
    for row in group.rows:
        compared = _compared(group, judged, row) if judged is not None else ()
        rows.append((row.label, *compared, *(_cost(row.costs, name) for name in known)))
    return Table(
        title=f"{group.title}: differences{' and costs' * bool(known)}",
        legend=tuple(legend),
        header=(*header, *known),
        rows=tuple(rows),
    )


_JUDGED = ("95 % interval", "p", "significant")
_COSTS = {
    "weights": "weights: those of the aggregators",
    "step": f"step: processor time of a training step, in {UNIT} timed beside it",
    "embed": "embed: likewise, of embedding an item of the test split and its texts, or of answering a question",
    "query": "query: likewise, of scoring a query with all of the test split and ranking it",
    "bytes": "bytes: the embeddings of an image or video in memory",
}
"""The columns of costs, and what they mean."""


def _method(judged: Judged) -> str:
    seeds = [difference.over_seeds for difference in judged.pairs.values()]
    over = "seeds and queries" if all(seeds) else "seeds (where both rows have two) and queries"
    if not any(seeds):
        over = f"queries alone ({ONE_SEED})"
    return f"intervals over {over} ({judged.units}), each alone; p {_corrected(judged)}, significant below {LEVEL}"


def _cost(costs: Costs, name: str) -> str:
    value = getattr(costs, name)
    if math.isnan(value):
        return ABSENT
    return f"{value:,.0f}" if name in ("weights", "bytes") or value >= 100 else f"{value:.3g}"


def _compared(group: Group, judged: Judged, row: Row) -> tuple[str, ...]:
    mean, interval = group.mean(row), judged.intervals.get(row.label)
    return (
        ABSENT if math.isnan(mean) else group.number(mean),
        _interval(interval, group.number) if interval else ABSENT,
        *_difference(judged.difference(row.label, judged.labels[0]), group),
    )


def _interval(ends: tuple[float, float], number: Callable[[float], str]) -> str:
    return f"[{number(ends[0])}, {number(ends[1])}]"


def _difference(difference: Difference | None, group: Group) -> tuple[str, ...]:
    if difference is None:
        return (ABSENT,) * 4
    digits = group.decimals(group.ranked_by.name)
    interval = _interval((difference.low, difference.high), lambda x: with_sign(x, digits))
    p = f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"
    return with_sign(difference.value, digits), interval, p, verdict(difference)


def with_sign(value: float, digits: int) -> str:
    """Return a number with its sign; without one if it rounds to 0."""
    return f"{value:+.{digits}f}" if round(abs(value), digits) else f"{0:.{digits}f}"


def all_pairs(group: Group) -> Table | None:
    """Return the difference of every two rows of a group; None if no queries were compared."""
    judged = group.judged
    if judged is None:
        return None
    pairs = itertools.combinations(judged.labels, 2)
    return Table(
        title=f"{group.title}: all pairs",
        legend=(f"{group.ranked_by.label}, the first minus the second; {_method(judged)}",),
        header=("pair", "difference", *_JUDGED),
        rows=tuple((f"{a} against {b}", *_difference(judged.difference(a, b), group)) for a, b in pairs),
    )


def shown_by_seeds(group: Group) -> Table | None:
    """Return the smallest differences that numbers of seeds show; None if seeds cannot be judged."""
    judged = group.judged
    if judged is None or (planning := judged.planning) is None:
        return None
    digits, tests = group.decimals(group.ranked_by.name), [1, planning.pairs] if planning.pairs > 1 else [1]
    found = {
        f"{seeds}{' (now)' * (seeds == planning.runs)}": [
            planning.smallest(seeds=seeds, tests=n) for n in tests
        ]
        for seeds in sorted({max(planning.runs, 2), *_MORE})
        if seeds >= planning.runs
    }
    found["any number"] = [planning.floor(tests=n) for n in tests]
    rows = [
        (label, *(_detectable(group, value, digits) for value in values)) for label, values in found.items()
    ]
    each, between = math.sqrt(planning.seeds), math.sqrt(planning.queries)
    return Table(
        title=f"{group.title}: what seeds can show",
        legend=(
            f"smallest difference of {group.ranked_by.label} that a test at the 5 % level finds in "
            f"{100 * POWER:.0f} of 100 repetitions with {judged.units}, by the mean standard deviations of this table: "
            f"{each:.{digits}f} of a run over seeds, {between:.{digits}f} of a difference over queries",
        ),
        header=("seeds", "a pair alone", f"one of {planning.pairs} pairs")[: 1 + len(tests)],
        rows=tuple(rows),
    )


def _detectable(group: Group, value: float, digits: int) -> str:
    """Return a difference; a dash if it exceeds the distance between chance and the best possible value."""
    whole = abs(group.ranked_by.best - group.ranked_by.chance)
    return ABSENT if value > whole else f"{value:.{digits}f}"  # a comparison with NaN is false


def needed(group: Group, difference: float) -> str:
    """Return how many seeds a difference needs, in words; empty if the queries of the rows were not compared."""
    if group.judged is None:
        return ""
    start = f"{group.title}: a difference of {difference:g}"
    planning = group.judged.planning
    if planning is None:
        return (
            f"{start}: with one seed a row the number of seeds is unknown; train a second and a third first"
        )
    alone = f"{start} needs {_seeds(planning, difference, 1)}"
    if planning.pairs == 1:
        return alone
    return f"{alone}; as one of {planning.pairs} pairs {_seeds(planning, difference, planning.pairs)}"


def _seeds(planning: Planning, difference: float, tests: int) -> str:
    seeds = planning.needed(difference, tests=tests)
    if seeds is None and planning.floor(tests=tests) >= difference:
        return "more queries rather than more seeds"
    if seeds is None:
        return f"more than {MOST:,} seeds"
    more = seeds - planning.runs
    return f"{seeds} seeds a row" + (f", {more} more" if more > 0 else ", which there are")
