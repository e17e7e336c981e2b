"""From the runs of an experiment to groups of rows, and notes on what is left out or odd."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from infra.errors import InputError, unknown
from infra.tracking import RunRecord
from pipelines.comparison.groups import METRICS, SECONDS, Group, Row, ordered
from tasks.scoring.protocols import PROTOCOLS

Cell = tuple[str, str, str]
"""Task, data set and protocol."""


def arranged(
    runs: Sequence[RunRecord], *, experiment: str, metric: str = "", protocol: str = ""
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Arrange runs in groups, and say what is left out or odd.

    Args:
        runs: all that are to be compared, finished or not.
        experiment: its name, for messages.
        metric: what orders the rows; a group without it, or all where empty, take their main one.
        protocol: the only one shown; where empty, every one that a test split was scored under.

    Raises:
        InputError: no such metric or protocol, or nothing that can be compared.
    """
    finished = sorted(
        (run for run in runs if run.status == "FINISHED"), key=lambda run: run.ended, reverse=True
    )
    notes = [*_left_out("not finished", [run for run in runs if run.status != "FINISHED"])]
    notes += _left_out("without scores to show", [run for run in finished if not _protocols(run, protocol)])
    cells: dict[Cell, list[RunRecord]] = defaultdict(list)
    for run in finished:
        for name in _protocols(run, protocol):
            cells[run.tags.get("task", ""), run.tags.get("dataset", ""), name].append(run)
    if not cells and protocol:
        scored = {name.partition("/")[0] for run in finished for name in run.metrics} & {*PROTOCOLS}
        raise unknown("protocol", protocol, scored, f" Those are what the runs of {experiment!r} have.")
    if not cells:
        raise InputError(f"experiment {experiment!r} has nothing to compare yet; {'; '.join(notes)}")
    notes += _protocols_apart([*cells])
    groups = tuple(_group(cell, cells[cell], metric, notes) for cell in sorted(cells))
    if metric and all(group.metric != metric for group in groups):
        raise unknown(
            "metric", metric, {name for group in groups for row in group.rows for name in row.values}
        )
    return groups, tuple(notes)


def _protocols(run: RunRecord, only: str) -> set[str]:
    """Return the protocols of a run's scores: the one asked for, or its own and others of test splits."""
    scored = {name.partition("/")[0] for name in run.metrics}
    tests = {name for name, protocol in PROTOCOLS.items() if protocol.split == "test"}
    return scored & ({only} if only else {run.tags.get("protocol", ""), *tests})


def _protocols_apart(cells: Sequence[Cell]) -> Iterator[str]:
    """Say where the runs of one task and data set were scored under several protocols."""
    protocols: dict[tuple[str, str], list[str]] = defaultdict(list)
    for task, dataset, protocol in sorted(cells):
        protocols[task, dataset].append(protocol)
    for (task, dataset), names in protocols.items():
        if len(names) > 1:
            yield (
                f"{task} · {dataset} has a table each for the protocols {', '.join(names)}, whose numbers cannot be "
                "compared"
            )


def _group(cell: Cell, runs: Sequence[RunRecord], metric: str, notes: list[str]) -> Group:
    """Arrange one cell's runs, latest first, in rows; what is odd about them is added to `notes`."""
    task, dataset, protocol = cell
    recipes = {run.tags.get("recipe", "") for run in runs}
    rows: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        rows[_label(run) + (f", {run.tags.get('recipe', '')}" if len(recipes) > 1 else "")].append(run)
    made = []
    for label, group in rows.items():
        latest = {run.tags.get("seed", ""): run for run in reversed(group)}
        notes += _oddities(f"{label} ({protocol})", group, latest)
        made.append(_row(label, [latest[seed] for seed in sorted(latest)], protocol))
    notes += _missing_seeds(f"{task} · {dataset} · {protocol}", made)
    had = {name for row in made for name in row.values}
    if metric not in had:
        metric = next((name for name in METRICS if name in had), min(had, default="rsum"))
    return Group(task=task, dataset=dataset, protocol=protocol, metric=metric, rows=ordered(made, metric))


def _aggregator(run: RunRecord) -> str:
    """Name the aggregator of a run, and the text's where that differs."""
    own = run.tags.get("aggregator", "?")
    text = run.tags.get("text_aggregator", own)
    return own if text == own else f"{own}, text {text}"


def _label(run: RunRecord) -> str:
    """Name what a run compares: its aggregator, and the model around it."""
    kind, model = run.tags.get("kind", "train"), run.tags.get("model", "")
    return ("" if kind == "train" else f"{kind}: ") + _aggregator(run) + (f" in {model}" if model else "")


def _row(label: str, runs: Sequence[RunRecord], protocol: str) -> Row:
    names = [name.removeprefix(f"{protocol}/") for name in runs[0].metrics if name.startswith(f"{protocol}/")]
    columns = {name: f"{protocol}/{name}" for name in names} | {SECONDS: "time/train_seconds"}
    values = {
        name: tuple(run.metrics[key] for run in runs)
        for name, key in columns.items()
        if all(key in run.metrics for run in runs)
    }
    tags = runs[0].tags
    return Row(
        label=label,
        aggregator=_aggregator(runs[0]) if tags.get("kind", "train") == "train" else "",
        recipe=tags.get("recipe", ""),
        model=tags.get("model", ""),
        seeds=tuple(run.tags.get("seed", "") for run in runs),
        values=values,
        runs=tuple(runs),
    )


def _oddities(row: str, group: Sequence[RunRecord], latest: dict[str, RunRecord]) -> Iterator[str]:
    """Say where a seed ran more than once, and where the runs of a row differ in more than the seed."""
    for seed in sorted(latest):
        times = sum(run.tags.get("seed", "") == seed for run in group)
        if times > 1:
            named = f"seed {seed}" if seed else "without a seed"
            yield f"{row} {named} finished {times} times; the latest is shown, run {latest[seed].run_id}"
    params = [run.params for run in latest.values() if run.tags.get("kind", "train") == "train"]
    names = {name for given in params for name in given} - {"seed"}
    if differing := sorted(name for name in names if len({given.get(name) for given in params}) > 1):
        yield f"{row}: its runs differ in {', '.join(differing)}"


def _missing_seeds(group: str, rows: Sequence[Row]) -> Iterator[str]:
    """Say which rows lack seeds that others of their group have."""
    trained = [row for row in rows if row.aggregator]
    seeds = {seed for row in trained for seed in row.seeds if seed}
    if unnoted := [row.label for row in trained if "" in row.seeds]:
        yield f"{group}: which seed a run had is not noted, in the tag `seed`: {', '.join(unnoted)}"
    lacking = [(row.label, sorted(seeds - {*row.seeds})) for row in trained if seeds - {*row.seeds}]
    if lacking:
        named = "; ".join(f"{label} {', '.join(missing)}" for label, missing in lacking)
        yield f"{group}: seeds are missing, so rows are means over different ones: {named}"


def _left_out(why: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Count and name runs that are not shown."""
    if runs:
        named = ", ".join(f"{run.name or run.run_id} ({run.status.lower()})" for run in runs[:8])
        more = f" and {len(runs) - 8} more" if len(runs) > 8 else ""
        yield f"{len(runs)} run{'s' * (len(runs) > 1)} left out, {why}: {named}{more}"
