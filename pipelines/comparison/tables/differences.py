"""Tables of the differences between rows, of their costs, and of what more seeds would show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from polypool.infra.compute.cost import UNIT
from polypool.infra.text_tables import ABSENT, Table
from polypool.pipelines.comparison.groups import Costs, Group, Row, doubts
from polypool.pipelines.comparison.statistics.intervals import LEVEL, Difference
from polypool.pipelines.comparison.statistics.power import MOST, POWER, Planning
from polypool.pipelines.comparison.statistics.significance import Judged

_MORE = (2, 3, 5, 10, 20)  # seeds
BY_QUERIES = "?"
MARKS = {False: "*", None: BY_QUERIES}
"""The sign after a score, by the significance of its difference from the best; a blank after others."""


def verdict(difference: Difference) -> str:
    """Return whether a difference is significant, in words."""
    return {None: "by queries", True: "yes", False: "no"}[difference.significant]


def mark(difference: Difference | None) -> str:
    """Return the sign after the score of a row, for its difference from the best."""
    return MARKS.get(difference.significant, " ") if difference is not None else " "


def legend_of_marks(group: Group) -> Iterator[str]:
    """Yield what the signs after scores mean."""
    judged = group.judged
    if judged is None or not judged.compared:
        return
    best, marks = judged.labels[0], {mark(judged.from_best(row.label)) for row in group.rows}
    if judged.best:
        size = f"{len(judged.confidence_set)} of {len(judged.labels)} rows"
        yield f"*: in the confidence set of the best, {size} (95 %, over {_over(group)})"
    else:
        yield f"*: no significant difference from {best} over seeds and {judged.units}, {_by_holm(judged.tests)}"
    if BY_QUERIES in marks:
        yield f"?: the queries tell it from {'the best' if judged.best else best}; {ONE_SEED}"


def confidence_set(group: Group) -> Iterator[str]:
    """Yield which rows are in the confidence set of the best, if their queries were compared."""
    if (judged := group.judged) is not None and judged.best:
        labels = judged.confidence_set
        yield (
            f"confidence set of the best (95 %, over {_over(group)}): {len(labels)} of {len(judged.labels)}: "
            f"{', '.join(labels)}"
        )


def group_doubts(group: Group) -> Iterator[str]:
    """Yield why the scores of a group, or of some of its rows, say nothing about their aggregators."""
    ends = group.judged.intervals if group.judged else {}
    means = {row.label: (group.mean(row), group.mean(row)) for row in group.known}
    known = {label: of for label, of in ends.items() if label in means and not math.isnan(of[0])}
    yield from doubts(group.metric, means | known, units=group.units)


def finding(group: Group, rows: Mapping[str, Row]) -> str:
    """Return which row of some is first, and which of them may be the best; empty where nothing is ranked.

    Args:
        group: the rows' group.
        rows: by the names to print, the best first.
    """
    known = {name: row for name, row in rows.items() if not math.isnan(group.mean(row))}
    if not known:
        return ""
    first, *_ = known
    text = f"{first} has the best {group.metric.name}, {group.number(group.mean(known[first]))}"
    judged = group.judged
    if judged is None or not judged.best:
        return text
    names = [name for name, row in known.items() if row.label in judged.best]
    may_be = [name for name in names if known[name].label in judged.confidence_set]
    of = f"{len(may_be)} of {len(names)} may be the best (*; 95 %, over {_over(group)})"
    return f"{text}; {of}: {', '.join(may_be) if len(may_be) < len(names) else 'none is excluded'}"


def _over(group: Group) -> str:
    """Return what the rows were judged over, in words."""
    judged = group.judged
    assert judged is not None
    runs = [len(row.seeds) for row in group.rows if row.label in judged.labels]
    if max(runs) == 1:
        return f"queries alone: {judged.units}; {ONE_SEED}"
    borrowed = " (a row of one seed is taken to vary as the others do)" if min(runs) == 1 else ""
    return f"seeds{borrowed} and {judged.units}"


def _by_holm(tests: int) -> str:
    return f"corrected by Holm for {tests} pair{'s' * (tests > 1)}"


ONE_SEED = "one seed does not show what another would change"


def differences(group: Group, *, costs: bool = True) -> Table | None:
    """Return how far a group's rows are from the best, and what they cost; None if neither is known."""
    known = [
        name
        for name in _COSTS
        if costs and not all(math.isnan(getattr(row.costs, name)) for row in group.rows)
    ]
    header, legend = ["aggregator"], []
    judged = group.judged if group.judged and group.judged.compared else None
    if judged is None and not known:
        return None
    if judged is not None:
        header += [group.metric.name, "95 % interval", "difference", "95 % interval", "p", "may be best"]
        legend.append(
            f"difference of {group.metric.label} from the best of the others, p of being the best, over "
            f"{_over(group)}; the intervals of differences are simultaneous"
        )
    if known:
        legend.append("; ".join(_COSTS[name] for name in known))
    if _TIMED & {*known}:
        legend.append(
            "processor time: the lowest of a row's runs, with the highest where it is more than a tenth above; one run "
            "alone may be up to twice too high"
        )
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


_COSTS = {
    "weights": "weights: those of the aggregators",
    "step": f"step: processor time of a training step, in {UNIT} timed beside it",
    "embed": "embed: likewise, of embedding an item of the test split and its texts, or of answering a question",
    "query": "query: likewise, of scoring a query with all of the test split and ranking it",
    "bytes": "bytes: the embeddings of an image or video in memory",
}
"""The columns of costs, and what they mean."""
_TIMED = {"step", "embed", "query"}


def _cost(costs: Costs, name: str) -> str:
    value = getattr(costs, name)
    if math.isnan(value):
        return ABSENT
    if name not in _TIMED:
        return f"{value:,.0f}"
    most = getattr(costs, f"most_{name}")
    return f"{two_digits(value)}-{two_digits(most)}" if most > 1.1 * value else two_digits(value)


def two_digits(value: float) -> str:
    """Return a number with two significant digits."""
    return f"{float(f'{value:.2g}'):,.10g}"


def _compared(group: Group, judged: Judged, row: Row) -> tuple[str, ...]:
    mean, interval, best = group.mean(row), judged.intervals.get(row.label), judged.best.get(row.label)
    may_be = {False: "yes", True: "no", None: "no, by queries"}
    return (
        ABSENT if math.isnan(mean) else group.number(mean),
        interval_text(interval, group.number) if interval else ABSENT,
        *((*_numbers(best, group), may_be[best.significant]) if best else (ABSENT,) * 4),
    )


def interval_text(ends: tuple[float, float], number: Callable[[float], str]) -> str:
    """Return the ends of an interval as text."""
    return f"[{number(ends[0])}, {number(ends[1])}]"


def _numbers(difference: Difference, group: Group) -> tuple[str, str, str]:
    """Return a difference, its interval and p, as text."""
    digits = group.decimals(group.metric.name)
    interval = interval_text((difference.low, difference.high), lambda x: with_sign(x, digits))
    p = f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"
    return with_sign(difference.value, digits), interval, p


def with_sign(value: float, digits: int) -> str:
    """Return a number with its sign; without one if it rounds to 0."""
    return f"{value:+.{digits}f}" if round(abs(value), digits) else f"{0:.{digits}f}"


def against_baseline(group: Group) -> Table | None:
    """Return the difference of each row from the baseline; None where there is none."""
    judged = group.judged
    if judged is None or not judged.baseline:
        return None
    return _table_of(
        group,
        title=f"against {judged.baseline}",
        first="aggregator",
        what=f"minus {judged.baseline}, over {_over(group)}; simultaneous intervals, p corrected for all rows",
        tested={label: judged.against[label] for label in judged.labels if label in judged.against},
    )


def all_pairs(group: Group) -> Table | None:
    """Return the difference of every two rows of a group; None if they were not compared."""
    judged = group.judged
    if judged is None or not judged.pairs:
        return None
    how = f"over {_over(group)}; each interval alone; p {_by_holm(judged.tests)}"
    return _table_of(
        group,
        title="all pairs",
        first="pair",
        what=f"the first minus the second, {how}",
        tested={f"{one} against {other}": found for (one, other), found in judged.pairs.items()},
    )


def _table_of(group: Group, *, title: str, first: str, what: str, tested: Mapping[str, Difference]) -> Table:
    return Table(
        title=f"{group.title}: {title}",
        legend=(f"{group.metric.label}, {what}; significant below {LEVEL}",),
        header=(first, "difference", "95 % interval", "p", "significant"),
        rows=tuple((label, *_numbers(found, group), verdict(found)) for label, found in tested.items()),
    )


def shown_by_seeds(group: Group) -> Table | None:
    """Return the smallest differences that numbers of seeds show; None if seeds cannot be judged."""
    judged = group.judged
    if judged is None or (planning := judged.planning) is None:
        return None
    digits, tests = group.decimals(group.metric.name), [1, planning.others] if planning.others > 1 else [1]
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
            f"smallest difference of {group.metric.label} that a test at the 5 % level finds in "
            f"{100 * POWER:.0f} of 100 repetitions with {judged.units}, by the mean standard deviations of this table: "
            f"{each:.{digits}f} of a run over seeds, {between:.{digits}f} of a difference over queries",
        ),
        header=("seeds", "a pair alone", f"one of {planning.others} with a baseline")[: 1 + len(tests)],
        rows=tuple(rows),
    )


def _detectable(group: Group, value: float, digits: int) -> str:
    """Return a difference; a dash if it exceeds the distance between chance and the best possible value."""
    whole = abs(group.metric.best - group.metric.chance)
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
    if planning.others == 1:
        return alone
    return f"{alone}; as one of {planning.others} with a baseline {_seeds(planning, difference, planning.others)}"


def _seeds(planning: Planning, difference: float, tests: int) -> str:
    seeds = planning.needed(difference, tests=tests)
    if seeds is None and planning.floor(tests=tests) >= difference:
        return "more queries rather than more seeds"
    if seeds is None:
        return f"more than {MOST:,} seeds"
    more = seeds - planning.runs
    return f"{seeds} seeds a row" + (f", {more} more" if more > 0 else ", which there are")
