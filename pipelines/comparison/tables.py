"""Tables of a comparison: scores, published numbers, differences, costs, seeds, task x aggregator, front tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from polypool.infra.compute.cost import UNIT
from polypool.infra.spec import split_values
from polypool.infra.text_tables import ABSENT, Table
from polypool.pipelines.comparison.cross_task import Column, CrossTaskTable
from polypool.pipelines.comparison.rows import SECONDS, Group, Row, doubts
from polypool.pipelines.comparison.statistics import (
    LEVEL,
    MOST,
    POWER,
    Difference,
    Planning,
)

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
_BY_QUERIES = f"?: the queries tell it from the best; {ONE_SEED}"
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
    "rank": "rank: by the primary metric",
    "weights": "weights: number of the aggregators' parameters; the largest over columns",
    "step": "step: CPU time of a training step relative to the fastest row of its column; geometric mean over columns",
}
_TUNING = {
    "trials": "trials: tuning trials, of all points in the aggregator's search space",
    "chosen": "chosen: tuned settings, one per column if they differ; lr and weight_decay are the optimiser's",
}


def mark(difference: Difference | None) -> str:
    """Return the sign after a row's score: whether the row may be the best."""
    return {False: "*", None: "?"}.get(difference.significant, " ") if difference is not None else " "


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


# --- scores of a group


def scores(group: Group, *, tuning: bool = True) -> Table:
    """Return the metrics of a group's rows, with their tuned settings."""
    legend = f"sorted by {group.metric.label}; mean ± sample standard deviation over runs"
    if not math.isnan(group.metric.chance):
        legend += f"; chance {group.metric.name} {group.number(group.metric.chance)}"
    columns, judged, marks, signs, notes = group.columns, group.judged, dict[str, str](), [], []
    if judged is not None:
        marks = {row.label: mark(judged.best.get(row.label)) for row in group.rows}
    if judged is not None and judged.best:
        size, over = f"{len(judged.confidence_set)} of {len(judged.labels)}", f"(95 %, over {_over(group)})"
        signs = [f"*: in the confidence set of the best, {size} rows {over}"]
        signs += [_BY_QUERIES] * ("?" in marks.values())
        notes = [f"confidence set of the best {over}: {size}: {', '.join(judged.confidence_set)}"]
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
    table, best = scores(group, tuning=False), group.judged.best if group.judged else {}
    found = finding(group, {row.label: row for row in group.rows}, best=best)
    return replace(
        table,
        legend=(table.legend[0], *_by_queries(table)),
        notes=(*filter(None, [found]), *group_doubts(group)),
    )


def _by_queries(table: Table) -> list[str]:
    """Return the meaning of `?`, if the legend of a table has it."""
    return [line for line in table.legend if line == _BY_QUERIES]


def group_doubts(group: Group) -> Iterator[str]:
    """Yield reasons to distrust the scores of a group or of some of its rows."""
    ends = group.judged.intervals if group.judged else {}
    means = {row.label: (group.mean(row), group.mean(row)) for row in group.known}
    known = {label: of for label, of in ends.items() if label in means and not math.isnan(of[0])}
    yield from doubts(group.metric, means | known, units=group.units)


def finding(group: Group, rows: Mapping[str, Row], *, best: Mapping[str, Difference]) -> str:
    """Return the first of some rows and those that may be the best, as a sentence; empty without scores.

    Args:
        group: of the rows.
        rows: by the names to print, the best first.
        best: differences from the best of the others among the rows, by label; empty without tests.
    """
    known = {name: row for name, row in rows.items() if not math.isnan(group.mean(row))}
    if not known:
        return ""
    first = next(iter(known))
    text = f"{first} has the best {group.metric.name}, {group.number(group.mean(known[first]))}"
    if not best:
        return text
    names = [name for name, row in known.items() if row.label in best]
    may_be = [name for name in names if not best[known[name].label].found]
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
    lines = [*known, *((name, value, "ours") for name, value in ours.items())]
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
    judged = group.judged if group.judged and group.judged.best else None
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
    return with_sign(difference.value, digits), interval, _p(difference)


def _p(difference: Difference) -> str:
    return f"{difference.p:.3f}" if difference.p >= 0.001 else "< 0.001"


def all_pairs(group: Group) -> Table | None:
    """Return the tested differences of all pairs of rows; None if they were not requested."""
    judged = group.judged
    if judged is None or not judged.pairs:
        return None
    count = len(judged.pairs)
    how = f"over {_over(group)}; each interval alone; p corrected by Holm for {count} pair{'s' * (count > 1)}"
    return Table(
        title=f"{group.title}: all pairs",
        legend=(f"{group.metric.label}, the first minus the second, {how}; significant below {LEVEL}",),
        header=("pair", "difference", "95 % interval", "p", "significant"),
        rows=tuple(
            (f"{one} against {other}", *_numbers(of, group), _SIGNIFICANT[of.significant])
            for (one, other), of in judged.pairs.items()
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
    whole = abs(group.metric.best - group.metric.chance)  # NaN if unknown: no value exceeds it
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
    if group.judged is None or not group.judged.best:
        return ""
    start, planning = f"{group.title}: a difference of {difference:g}", group.judged.planning
    if planning is None:
        return (
            f"{start}: with one seed a row the number of seeds is unknown; train a second and a third first"
        )
    alone = f"{start} needs {_needed(planning, difference, 1)}"
    if planning.others == 1:
        return alone
    return f"{alone}; as one of {planning.others} with a baseline {_needed(planning, difference, planning.others)}"


def _needed(planning: Planning, difference: float, tests: int) -> str:
    seeds = planning.needed(difference, tests=tests)
    if seeds is None and planning.floor(tests=tests) >= difference:
        return "more queries rather than more seeds"
    if seeds is None:
        return f"more than {MOST:,} seeds"
    more = seeds - planning.runs
    return f"{seeds} seeds a row" + (f", {more} more" if more > 0 else ", which there are")


# --- task x aggregator


def across(table: CrossTaskTable) -> Table:
    """Return task x aggregator: scores, or if all columns have the same baseline, differences from it."""
    if table.baseline:
        return front(table)
    columns, names = table.columns, table.aggregators
    tested = any(column.from_best for column in columns)
    over = "primary metric, mean ± sample standard deviation over runs"
    if tested:
        over += "; *: in the confidence set of the best of its column (95 %, over seeds and queries)"
    summaries, rows = _summaries(table), []
    for name in names:
        cells = [_entry(column, name, tested) for column in columns]
        rows.append((name, *cells, *(of.get(name, ABSENT) for of in summaries.values())))
    return Table(
        title=" · ".join(part for part in ("task x aggregator", table.tuned) if part),
        legend=(
            "a column is one protocol, and numbers of different protocols are never in one column",
            over,
            *[_BY_QUERIES] * any("?" in cell for _, *cells in rows for cell in cells),
            *_usual(table),
            *_meanings(table, summaries),
        ),
        header=("aggregator", *("\n".join(column.title) for column in columns), *summaries),
        rows=tuple(rows),
        notes=table.notes,
        best=frozenset((names.index(column.best.variant), at) for at, column in enumerate(columns, start=1)),
        label=32,
    )


def front(table: CrossTaskTable, *, tuning: bool = True) -> Table:
    """Return differences from the baseline, whose scores are the first row, and p-values of being the best.

    Args:
        table: of one or several columns with the same baseline.
        tuning: show trials and chosen settings.
    """
    summaries, tuned = _summaries(table), _tuning(table) if tuning and table.tuned else {}
    shared = " · ".join(table.columns[0].group.title.split(" · ")[:3]) if len(table.columns) == 1 else ""
    rows = []
    for name in table.aggregators:
        cells = [cell for column in table.columns for cell in _against(column, name)]
        ends = (of.get(name, ABSENT) for of in (*summaries.values(), *tuned.values()))
        rows.append((name, *cells, *ends))
    return Table(
        title=" · ".join(
            filter(None, (shared or "task x aggregator", f"against {table.baseline}", table.tuned))
        ),
        legend=(
            f"first row: scores of {table.baseline}; other rows: differences from it in the primary metric, with 95 % "
            "intervals over seeds and queries, simultaneous within a column",
            "p: p-value of being the best of its column; below 0.05 the row is ruled out",
            *[f"?: over queries alone; {ONE_SEED}"] * any("?" in cell for row in rows for cell in row),
            *_usual(table),
            *_meanings(table, summaries),
            *(_TUNING[title] for title in tuned),
        ),
        header=(
            "aggregator",
            *(cell for column in table.columns for cell in ("\n".join((*column.title, _seeds(column))), "p")),
            *summaries,
            *tuned,
        ),
        rows=tuple(rows),
        notes=table.notes,
        best=frozenset(
            (name, 1 + 2 * at)
            for at, column in enumerate(table.columns)
            for name in [table.aggregators.index(next(n for n, r in column.rows.items() if r is column.best))]
        ),
        label=24,
    )


def _against(column: Column, aggregator: str) -> tuple[str, str]:
    """Return an aggregator's difference from the baseline, or the baseline's score, and its p of being the best."""
    row, group = column.rows.get(aggregator), column.group
    if row is None or math.isnan(group.mean(row)):
        return ABSENT, ABSENT
    best, of, text = column.from_best.get(row.label), column.from_baseline.get(row.label), ABSENT
    if of:
        value, interval, _ = _numbers(of, group)
        text = f"{value} {interval}" + "?" * (not of.over_seeds)
    elif aggregator == column.baseline:
        text = group.number(group.mean(row))
    if " to " in _seeds(column):
        text += f", {len(row.seeds)} seed{'s' * (len(row.seeds) > 1)}"
    return text, _p(best) if best else ABSENT


def _seeds(column: Column) -> str:
    """Return the numbers of seeds of a column's rows in words."""
    counts = sorted({len(row.seeds) for row in column.rows.values()})
    return " to ".join(map(str, counts[:1] + counts[1:][-1:])) + f" seed{'s' * (counts[-1] > 1)}"


def _tuning(table: CrossTaskTable) -> dict[str, dict[str, str]]:
    """Return the trials and the chosen settings of each aggregator."""
    trials, chosen = dict[str, str](), dict[str, str]()
    for name in table.aggregators:
        rows = [column.rows.get(name) for column in table.columns]
        settings = [
            dict(part.strip().split("=", 1) for part in split_values(row.chosen, row.chosen))
            if row and row.chosen
            else {}
            for row in rows
        ]
        values = {
            option: [of.get(option, ABSENT) for of in settings] for option in dict.fromkeys(chain(*settings))
        }
        trials[name] = ", ".join(dict.fromkeys(f"{row.trials} of {row.points}" for row in rows if row))
        chosen[name] = "; ".join(
            f"{option.removeprefix('optim.')} {'/'.join(of[:1] if len({*of}) == 1 else of)}"
            for option, of in values.items()
        )
    return {"trials": trials, "chosen": chosen}


def _summaries(table: CrossTaskTable) -> dict[str, dict[str, str]]:
    """Return rank, weights and cost of a step of each aggregator, where known."""
    ranked = sorted(table.means, key=lambda name: -table.means[name])
    ranks = {name: str(at) for at, name in enumerate(ranked, start=1)}
    for name, ends in table.ranks.items():
        ranks[name] += " " + interval_text(ends, str)
    found = {
        "rank": ranks,
        "weights": {name: f"{value:,.0f}" for name, value in table.weights.items()},
        "step": {name: f"{value:.2f}" for name, value in table.steps.items()},
    }
    return {title: of for title, of in found.items() if of}


def _meanings(table: CrossTaskTable, summaries: Iterable[str]) -> Iterator[str]:
    """Yield the meanings of the columns of `_summaries`."""
    for title in summaries:
        text = _SUMMARIES[title]
        if title == "rank":
            if len(table.counting) > 1:
                text = "rank: by the mean over columns of 100 (score - chance) / (best possible - chance)"
            text += ", with simultaneous 95 % intervals over seeds and queries" * bool(table.ranks)
        yield text


def _usual(table: CrossTaskTable) -> dict[str, None]:
    """Return the settings of rows whose labels name none, a sentence for each column."""
    return dict.fromkeys(f"{of.group.title}: {line}" for of in table.columns for line in of.group.usual)


def _entry(column: Column, aggregator: str, signs: bool) -> str:
    row, group = column.rows.get(aggregator), column.group
    if row is None or math.isnan(group.mean(row)):
        return ABSENT + " " * signs
    text = _with_deviation(group.mean(row), group.deviation(row), group.decimals(group.metric.name))
    return text + mark(column.from_best.get(row.label)) * signs


def brief_across(table: CrossTaskTable) -> Table:
    """Return task x aggregator, or the differences from a baseline, with the findings, for a terminal."""
    main, findings = front(table, tuning=False) if table.baseline else across(table), list[str]()
    for column in table.columns:
        rows = sorted(column.rows.items(), key=lambda pair: column.group.rows.index(pair[1]))
        of = f"{' '.join(column.title[:-1])}: " * (len(table.columns) > 1)
        if found := finding(column.group, dict(rows), best=column.from_best):
            findings.append(f"{of}{found}")
        findings += [f"{of}{doubt}" for doubt in group_doubts(column.group)]
    if len(table.counting) > 1 and (means := table.means):
        first = max(means, key=means.__getitem__)
        text = f"over {len(table.counting)} columns: {first} is first"
        if ranks := table.ranks:
            may = [name for name in table.aggregators if ranks.get(name, (2, 2))[0] == 1]
            text += f"; {len(may)} of {len(ranks)} may have rank 1: {', '.join(may)}"
        findings.append(text)
    legend = (
        main.legend[:3]
        if table.baseline
        else ("primary metrics, mean ± deviation over runs", *_by_queries(main))
    )
    rank = _meanings(table, ["rank"] * (len(table.counting) > 1 and bool(table.means)))
    legend = tuple(dict.fromkeys((*legend, *rank)))  # the legend of differences may have the rank
    return replace(main, legend=legend, notes=(*findings, *table.notes))
