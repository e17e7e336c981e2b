"""Which rows differ, by how much and what they cost, as tables."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator

from infra.compute.cost import UNIT
from pipelines.comparison.runs.costs import Costs, costs_of
from pipelines.comparison.runs.groups import Group, Row, spoken
from pipelines.comparison.statistics.intervals import LEVEL
from pipelines.comparison.statistics.significance import Difference, Judged
from pipelines.comparison.tables.render import ABSENT, Table


class Verdict(enum.Enum):
    """What is known of a difference."""

    UNKNOWN = ABSENT
    NO = "no"
    YES = "yes"
    QUERIES = "by queries"


MARKS = {Verdict.UNKNOWN: " ", Verdict.NO: "*", Verdict.YES: " ", Verdict.QUERIES: "?"}
"""What stands behind a score, by what is known of its difference from the best."""


def verdict(group: Group, label: str, other: str) -> Verdict:
    """Return what is known of the difference of two rows."""
    difference = group.judged.difference(label, other) if group.judged else None
    return Verdict.UNKNOWN if difference is None else _verdict(difference)


def _verdict(difference: Difference) -> Verdict:
    return {None: Verdict.QUERIES, True: Verdict.YES, False: Verdict.NO}[difference.significant]


def starred(group: Group) -> Iterator[str]:
    """Yield what the signs behind scores mean."""
    if group.judged is None:
        return
    best, judged = group.judged.labels[0], group.judged
    yield f"*: no significant difference from {best} over seeds and {judged.units}, {_corrected(judged)}"
    if any(verdict(group, row.label, best) is Verdict.QUERIES for row in group.rows):
        yield f"?: the queries tell it from {best}; {ONE_SEED}"


def _corrected(judged: Judged) -> str:
    return f"corrected by Holm for {_counted(judged.tests, 'pair')}"


ONE_SEED = "of one seed nobody can say what another would change"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def differences(group: Group, *, costs: bool = True) -> Table | None:
    """Return how far a group's rows are from the best, and what they cost; None where neither is known."""
    cost = {row.label: costs_of(row) for row in group.rows} if costs else {}
    known = {name for of in cost.values() for name in _COSTS if not math.isnan(getattr(of, name))}
    if group.judged is None and not known:
        return None
    columns = [name for name in _COSTS if name in known]
    header = ["aggregator"]
    legend = []
    if group.judged is not None:
        header += [group.metric.name, "95 % interval", "difference", *_JUDGED]
        legend.append(
            f"difference of {spoken(group.metric)} from {group.judged.labels[0]}; {_method(group.judged)}"
        )
    rows = []
    for row in group.rows:
        compared = _compared(group, row) if group.judged is not None else ()
        rows.append((row.label, *compared, *(_cost(cost[row.label], name) for name in columns)))
    if columns:
        legend.append("; ".join(_MEANING[name] for name in columns))
    return Table(
        title=f"{group.title}: differences and costs" if columns else f"{group.title}: differences",
        legend=tuple(legend),
        header=(*header, *columns),
        rows=tuple(rows),
    )


_JUDGED = ("95 % interval", "p", "significant")
_COSTS = ("weights", "step", "embed", "query", "bytes")
_MEANING = {
    "weights": "weights: those of the aggregators",
    "step": f"step: processor time of a training step, in {UNIT} timed beside it",
    "embed": "embed: likewise, of embedding an item of the test split and its texts, or of answering a question",
    "query": "query: likewise, of scoring a query with all of the test split and ranking it",
    "bytes": "bytes: the embeddings of an image or video in memory",
}


def _method(judged: Judged) -> str:
    """Say what intervals and p-values are over."""
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


def _compared(group: Group, row: Row) -> tuple[str, ...]:
    mean, reference = group.mean(row), group.judged.labels[0]
    first = ABSENT if math.isnan(mean) else group.number(mean)
    interval = _interval(group.judged.intervals.get(row.label), group.number)
    difference = group.judged.difference(row.label, reference)
    return (first, interval, *(_difference(difference, group) if difference else [ABSENT] * 4))


def _interval(ends: tuple[float, float] | None, number: Callable[[float], str]) -> str:
    return f"[{number(ends[0])}, {number(ends[1])}]" if ends else ABSENT


def _difference(difference: Difference, group: Group) -> tuple[str, ...]:
    digits = group.decimals(group.metric.name)
    interval = _interval((difference.low, difference.high), lambda x: with_sign(x, digits))
    p = f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"
    return with_sign(difference.value, digits), interval, p, _verdict(difference).value


def with_sign(value: float, digits: int) -> str:
    """Show a sign, but for what rounds to nothing."""
    return f"{value:+.{digits}f}" if round(abs(value), digits) else f"{0:.{digits}f}"


def all_pairs(group: Group) -> Table | None:
    """Return the difference of every two rows of a group; None where no queries were compared."""
    judged = group.judged
    if judged is None:
        return None
    pairs = itertools.combinations(judged.labels, 2)
    return Table(
        title=f"{group.title}: all pairs",
        legend=(f"{spoken(group.metric)}, of the first without that of the second; {_method(judged)}",),
        header=("pair", "difference", *_JUDGED),
        rows=tuple((f"{a} against {b}", *_difference(judged.difference(a, b), group)) for a, b in pairs),
    )
