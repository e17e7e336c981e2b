"""Tables of a comparison: scores, published numbers, differences, costs, seeds, task x aggregator, means over tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from polypool.infra.compute.cost import UNIT
from polypool.infra.text_tables import ABSENT, Table
from polypool.pipelines.comparison.cross_task import Column, CrossTaskTable
from polypool.pipelines.comparison.rows import SECONDS, Group, Row, doubts
from polypool.pipelines.comparison.statistics import (
    LEVEL,
    MOST,
    POWER,
    Difference,
    Planning,
    intervals,
    mean_of,
    rank_intervals,
    sample_of,
    with_best,
)

OURS = "ours"
PUBLISHED = {
    "f8k-1k/rsum": (
        ("UVSE", 214.9, "Kiros et al., 2014, arXiv 1411.2539"),
        ("UVSE, the released code", 247.4, "ryankiros/visual-semantic-embedding"),
        ("CCA on means of word vectors", 257.4, "Klein et al., CVPR 2015"),
    ),
}
"""Published methods without a recipe, with their values and sources, by protocol and metric."""
ONE_SEED = "one seed does not show what another would change"
_MORE = (2, 3, 5, 10, 20)  # seeds
_BY_QUERIES = f"?: the queries tell it from {{}}; {ONE_SEED}"
_SIGNIFICANT = {None: "by queries", True: "yes", False: "no"}
_COSTS = {
    "weights": "weights: number of the aggregators' weights",
    "step": f"step: processor time of a training step, in {UNIT} timed next to the run",
    "embed": "embed: likewise, of embedding an item of the test split and its texts, or of answering a question",
    "query": "query: likewise, of scoring a query with all of the test split and ranking it",
    "bytes": "bytes: the embeddings of an image or video in memory",
}
"""The columns of costs and their meaning."""
_TIMED = {"step", "embed", "query"}
_SUMMARIES = {
    "chance-\nnormalised": "chance-normalised: mean over columns of 100 (score - chance) / (best possible - chance)",
    "rank": "rank: mean over columns",
    "weights": "weights: of the aggregators, in the column where they are most",
    "step": "step: processor time of a training step, as a multiple of its column's least; geometric mean over columns",
}


def mark(difference: Difference | None) -> str:
    """Return the sign after a row's score: whether the row may be the best."""
    return {False: "*", None: "?"}.get(difference.significant, " ") if difference is not None else " "


def marks_of(group: Group) -> dict[str, str]:
    """Return the signs of a group's rows by label; empty if differences were not tested."""
    judged = group.judged
    return {row.label: mark(judged.best.get(row.label)) for row in group.rows} if judged else {}


def with_sign(value: float, digits: int) -> str:
    """Return a number with its sign, unless it rounds to 0."""
    return f"{value:+.{digits}f}" if round(abs(value), digits) else f"{0:.{digits}f}"


def two_digits(value: float) -> str:
    """Return a number with two significant digits."""
    return f"{float(f'{value:.2g}'):,.10g}"


def interval_text(ends: tuple[float, float], number: Callable[[float], str]) -> str:
    """Return the ends of an interval as text."""
    return f"[{number(ends[0])}, {number(ends[1])}]"


def _with_deviation(mean: float, deviation: float, digits: int) -> str:
    return f"{mean:.{digits}f} ± " + (f" {ABSENT}" if math.isnan(deviation) else f"{deviation:.{digits}f}")


def _over(group: Group) -> str:
    """Return the sources of chance that the tests cover, in words."""
    judged = group.judged
    assert judged is not None
    runs = [len(row.seeds) for row in group.rows if row.label in judged.labels]
    if max(runs) == 1:
        return f"queries alone: {judged.units}; {ONE_SEED}"
    borrowed = " (a row of one seed is taken to vary as the others do)" if min(runs) == 1 else ""
    return f"seeds{borrowed} and {judged.units}"


def _by_holm(tests: int) -> str:
    return f"corrected by Holm for {tests} pair{'s' * (tests > 1)}"


# --- scores of a group


def scores(group: Group, *, tuning: bool = True) -> Table:
    """Return the metrics of a group's rows, with their tuned settings."""
    legend = f"sorted by {group.metric.label}; mean ± sample standard deviation over runs"
    if not math.isnan(group.metric.chance):
        legend += f"; chance {group.metric.name} {group.number(group.metric.chance)}"
    columns, marks, judged, signs, notes = group.columns, marks_of(group), group.judged, [], []
    if judged is not None and judged.compared:
        size = f"{len(judged.confidence_set)} of {len(judged.labels)}"
        best = judged.labels[0] if judged.by_pairs else "the best"
        if judged.by_pairs:
            how = f"over seeds and {judged.units}, {_by_holm(judged.tests)}"
            signs = [f"*: no significant difference from {best} {how}"]
        else:
            signs = [f"*: in the confidence set of the best, {size} rows (95 %, over {_over(group)})"]
            set_of_best = f"confidence set of the best (95 %, over {_over(group)})"
            notes = [f"{set_of_best}: {size}: {', '.join(judged.confidence_set)}"]
        signs += [_BY_QUERIES.format(best)] * ("?" in marks.values())
    chosen = tuning and any(row.chosen for row in group.rows)
    names = [column.replace("/", " ") for column in columns]
    rows = []
    for row in group.rows:
        cells = []
        for name in columns:
            mean, text = row.mean(name), ABSENT
            if name == SECONDS.name and not math.isnan(mean):
                text = f"{mean:.0f}"
            elif not math.isnan(mean):
                text = _with_deviation(mean, row.deviation(name), group.decimals(name))
                text += marks.get(row.label, "") * (name == group.metric.name)
            cells.append(text)
        rows.append((row.label, str(len(row.seeds)), *cells, *[row.chosen or ABSENT] * chosen))
    return Table(
        title=group.title,
        legend=(legend, *group.usual, *signs),
        header=("aggregator", "runs", *names, *["chosen"] * chosen),
        rows=tuple(rows),
        notes=(*notes, *group_doubts(group), *(f"published, {line}" for line in group.published)),
        best=frozenset((0, 2 + at) for at, name in enumerate(columns) if name == group.metric.name),
    )


def brief_scores(group: Group) -> Table:
    """Return the metrics of a group's rows with the finding, for a terminal."""
    table, signs = scores(group, tuning=False), [_BY_QUERIES.format("the best")]
    found = finding(group, {row.label: row for row in group.rows})
    return replace(
        table,
        legend=(table.legend[0], *signs * ("?" in marks_of(group).values())),
        notes=(*filter(None, [found]), *group_doubts(group)),
    )


def group_doubts(group: Group) -> Iterator[str]:
    """Yield reasons to distrust the scores of a group or of some of its rows."""
    ends = group.judged.intervals if group.judged else {}
    means = {row.label: (group.mean(row), group.mean(row)) for row in group.known}
    known = {label: of for label, of in ends.items() if label in means and not math.isnan(of[0])}
    yield from doubts(group.metric, means | known, units=group.units)


def finding(group: Group, rows: Mapping[str, Row]) -> str:
    """Return the first of some rows and those that may be the best, as a sentence; empty without scores.

    Args:
        group: of the rows.
        rows: by the names to print, the best first.
    """
    known = {name: row for name, row in rows.items() if not math.isnan(group.mean(row))}
    if not known:
        return ""
    first, judged = next(iter(known)), group.judged
    text = f"{first} has the best {group.metric.name}, {group.number(group.mean(known[first]))}"
    if judged is None or not judged.best or judged.by_pairs:
        return text
    names = [name for name, row in known.items() if row.label in judged.best]
    may_be = [name for name in names if known[name].label in judged.confidence_set]
    listed = ", ".join(may_be) if len(may_be) < len(names) else "none is excluded"
    return f"{text}; {len(may_be)} of {len(names)} may be the best (*; 95 %, over {_over(group)}): {listed}"


def published(group: Group) -> Table | None:
    """Return the rows' scores next to the papers' numbers; None if no recipe has any."""
    lines = []
    for row in group.rows:
        for name, number in row.published.items():
            mean, digits = row.mean(name), group.decimals(name)
            ours, difference = ABSENT, ABSENT
            if not math.isnan(mean):
                ours, difference = f"{mean:.{digits}f}", with_sign(mean - number, digits)
            lines.append((row.label, name.replace("/", " "), ours, f"{number:.{digits}f}", difference))
    if not lines:
        return None
    return Table(
        title=f"{group.title}: ours and published",
        legend=("rows with the aggregators and the model of their recipe; ours: mean over runs",),
        header=("aggregator", "metric", "ours", "published", "difference"),
        rows=tuple(lines),
        notes=group.published,
    )


def methods(title: str, protocol: str, metric: str, ours: Mapping[str, float]) -> Table | None:
    """Return ours and other methods, the best first; None if no other method was published.

    Args:
        title: of the table.
        protocol: of our scores.
        metric: to compare; higher is better.
        ours: its values by row.
    """
    known = PUBLISHED.get(f"{protocol}/{metric}")
    if not known:
        return None
    lines = [*known, *((name, value, OURS) for name, value in ours.items())]
    lines.sort(key=lambda line: (-line[1], line[0]))
    return Table(
        title=title,
        header=("method", metric, "source"),
        rows=tuple((name, f"{value:.1f}", source) for name, value, source in lines),
    )


# --- differences between the rows of a group


def differences(group: Group) -> Table | None:
    """Return the differences of a group's rows from the best, and their costs; None if neither is known."""
    known = [name for name in _COSTS if not all(math.isnan(row.cost(name)) for row in group.rows)]
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
        cells, mean = [row.label], group.mean(row)
        if judged is not None:
            interval, best = judged.intervals.get(row.label), judged.best.get(row.label)
            may_be = {False: "yes", True: "no", None: "no, by queries"}
            cells += [
                ABSENT if math.isnan(mean) else group.number(mean),
                interval_text(interval, group.number) if interval else ABSENT,
                *((*_numbers(best, group), may_be[best.significant]) if best else (ABSENT,) * 4),
            ]
        for name in known:
            value, most = row.cost(name), row.cost(f"most_{name}")
            if math.isnan(value):
                cells.append(ABSENT)
            elif name not in _TIMED:
                cells.append(f"{value:,.0f}")
            else:
                cells.append(two_digits(value) + (f"-{two_digits(most)}" if most > 1.1 * value else ""))
        rows.append(tuple(cells))
    return Table(
        title=f"{group.title}: differences{' and costs' * bool(known)}",
        legend=tuple(legend),
        header=(*header, *known),
        rows=tuple(rows),
    )


def _numbers(difference: Difference, group: Group) -> tuple[str, str, str]:
    """Return a difference, its interval and its p-value as text."""
    digits = group.decimals(group.metric.name)
    interval = interval_text((difference.low, difference.high), lambda x: with_sign(x, digits))
    p = f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"
    return with_sign(difference.value, digits), interval, p


def requested_tests(group: Group) -> Iterator[Table]:
    """Yield the tested differences of each row from the baseline, and of all pairs of rows."""
    judged = group.judged
    if judged is not None and judged.baseline:
        yield _tested(
            group,
            title=f"against {judged.baseline}",
            first="aggregator",
            what=f"minus {judged.baseline}, over {_over(group)}; simultaneous intervals, p corrected for all rows",
            tested={label: judged.against[label] for label in judged.labels if label in judged.against},
        )
    if judged is not None and judged.pairs:
        how = f"over {_over(group)}; each interval alone; p {_by_holm(judged.tests)}"
        yield _tested(
            group,
            title="all pairs",
            first="pair",
            what=f"the first minus the second, {how}",
            tested={f"{one} against {other}": found for (one, other), found in judged.pairs.items()},
        )


def _tested(group: Group, *, title: str, first: str, what: str, tested: Mapping[str, Difference]) -> Table:
    return Table(
        title=f"{group.title}: {title}",
        legend=(f"{group.metric.label}, {what}; significant below {LEVEL}",),
        header=(first, "difference", "95 % interval", "p", "significant"),
        rows=tuple(
            (label, *_numbers(of, group), _SIGNIFICANT[of.significant]) for label, of in tested.items()
        ),
    )


def detectable(group: Group) -> Table | None:
    """Return the smallest detectable differences by number of seeds; None if the variance over seeds is unknown."""
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
    whole = abs(group.metric.best - group.metric.chance)  # NaN, of which no comparison is true, if unknown
    rows = [
        (label, *(ABSENT if value > whole else f"{value:.{digits}f}" for value in values))
        for label, values in found.items()
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


def seeds_needed(group: Group, difference: float) -> str:
    """Return the number of seeds that a difference needs, as a sentence; empty if the rows were not tested."""
    if group.judged is None:
        return ""
    start, planning = f"{group.title}: a difference of {difference:g}", group.judged.planning
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


# --- task x aggregator


def across(cross_task: CrossTaskTable) -> Table:
    """Return task x aggregator."""
    columns, names = cross_task.columns, cross_task.aggregators
    legend = ["a column is one protocol, and numbers of different protocols are never in one column"]
    over = "primary metric, mean ± sample standard deviation over runs"
    judged = [of for column in columns if (of := column.group.judged) is not None and of.compared]
    if any(not of.by_pairs for of in judged):
        over += "; *: in the confidence set of the best of its column (95 %, over seeds and queries)"
    elif judged:
        over += "; *: no significant difference from the best of its column, over seeds and queries (Holm)"
    legend += [over, *_one_seed(cross_task)]
    legend += dict.fromkeys(
        f"{column.group.title}: {line}" for column in columns for line in column.group.usual
    )
    known = (cross_task.means, cross_task.mean_ranks, cross_task.weights, cross_task.steps)
    summaries = {
        title: {name: f"{value:{form}}" for name, value in of.items()}
        for title, of, form in zip(_SUMMARIES, known, (".1f", ".1f", ",.0f", ".2f"), strict=True)
        if of
    }
    legend += [_SUMMARIES[title] for title in summaries]
    rows = []
    for name in names:
        cells = [_entry(column, name, bool(judged)) for column in columns]
        rows.append((name, *cells, *(of.get(name, ABSENT) for of in summaries.values())))
    notes = [*cross_task.notes]
    for column in columns:
        of, others = column.group.judged, [row for row in column.rows.values() if row is not column.best]
        if of and others and not any(row.label in column.from_best for row in others):
            title = " · ".join(column.title[:-1])
            notes.append(
                f"{title} is not judged: of its table the differences from {of.labels[0]} alone are known"
            )
    return Table(
        title=" · ".join(part for part in ("task x aggregator", cross_task.tuned) if part),
        legend=tuple(legend),
        header=("aggregator", *("\n".join(column.title) for column in columns), *summaries),
        rows=tuple(rows),
        notes=tuple(notes),
        best=frozenset((names.index(column.best.variant), at) for at, column in enumerate(columns, start=1)),
        label=32,
    )


def _entry(column: Column, aggregator: str, signs: bool) -> str:
    row, group = column.rows.get(aggregator), column.group
    if row is None or math.isnan(group.mean(row)):
        return ABSENT + " " * signs
    text = _with_deviation(group.mean(row), group.deviation(row), group.decimals(group.metric.name))
    return text + mark(column.from_best.get(row.label)) * signs


def _one_seed(cross_task: CrossTaskTable) -> list[str]:
    marks = {mark(of.from_best.get(row.label)) for of in cross_task.columns for row in of.rows.values()}
    return [_BY_QUERIES.format("the best")] * ("?" in marks)


def brief_across(cross_task: CrossTaskTable) -> Table:
    """Return task x aggregator with the findings, for a terminal."""
    table, findings, ranks = across(cross_task), list[str](), cross_task.mean_ranks
    for column in cross_task.columns:
        rows = sorted(column.rows.items(), key=lambda pair: column.group.rows.index(pair[1]))
        of = " ".join(column.title[:2])
        if found := finding(column.group, dict(rows)):
            findings.append(f"{of}: {found}")
        findings += [f"{of}: {doubt}" for doubt in group_doubts(column.group)]
    if ranks:
        first = min(ranks, key=ranks.__getitem__)
        over = f"best mean rank over {len(cross_task.counting)} columns"
        findings.append(f"{over}: {first}, {ranks[first]:.1f}")
    return replace(
        table,
        legend=(
            "primary metrics, mean ± deviation over runs; chance-normalised: mean over columns, 0 for chance, 100 for "
            "the best possible",
            *_one_seed(cross_task),
        ),
        notes=(*findings, *cross_task.notes),
    )


def over_tasks(cross_task: CrossTaskTable) -> Table | None:
    """Return the means over tasks with confidence sets; None for one task, or without `joints`."""
    joints = cross_task.joints
    if len(joints) < 2:
        return None
    these = mean_of(joints)
    others = sample_of(these.labels, np.stack([joint.value_R for joint in joints]))
    means, ranks, leads = intervals(these), rank_intervals(joints), intervals(others)
    lead = dict(zip(others.labels, others.value_R.tolist(), strict=True))
    best, best_of_others = with_best(these), with_best(others)
    may_be = {True: "no", False: "yes"}
    rows = [
        (
            name,
            f"{cross_task.means[name]:.1f}",
            interval_text(means[name], "{:.1f}".format),
            may_be[best[name].found],
            f"{cross_task.mean_ranks[name]:.1f}",
            interval_text(ranks[name], "{:.1f}".format),
            with_sign(lead[name], 1),
            interval_text(leads[name], lambda x: with_sign(x, 1)),
            may_be[best_of_others[name].found],
        )
        for name in cross_task.aggregators
        if name in these.labels
    ]
    over = (
        "seeds and queries"
        if these.over_seeds
        else f"queries, and seeds in tasks with rows of two ({ONE_SEED})"
    )
    notes = []
    for of, drawn, found in (
        ("these tasks", f"over {over}", best),
        ("other tasks like these", "over tasks, seeds and queries", best_of_others),
    ):
        names = [name for name, difference in found.items() if not difference.found]
        count = f"{len(names)} of {len(found)}"
        notes.append(f"confidence set of the best of {of} (95 %, {drawn}): {count}: {', '.join(names)}")
    interval, may = "95 % interval", "may be\nbest"
    return Table(
        title=" · ".join(part for part in ("over tasks", cross_task.tuned) if part),
        legend=(
            f"of these {len(joints)} columns: mean chance-normalised score and mean rank, with 95 % intervals over "
            f"{over}",
            f"other tasks, with these {len(joints)} as a sample: lead over the mean of all aggregators, with a 95 % "
            "interval over tasks, seeds and queries",
        ),
        header=(
            *("aggregator", "chance-\nnormalised", interval, may),
            *("rank", interval, "other tasks:\nlead", interval, may),
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )
