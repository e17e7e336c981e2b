"""From the runs of an experiment to groups of rows, and notes on what is left out or odd."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from infra.errors import InputError, unknown
from infra.tracking import RunRecord
from pipelines.comparison.runs.groups import SECONDS, Group, Row, ordered
from pipelines.comparison.runs.published import follows_recipe, published_numbers, sources
from pipelines.comparison.runs.settings import Settings, code_notes, deviations, left_out_notes, named
from tasks.base import Metric
from tasks.scoring.protocols import is_for_test
from tasks.scoring.records import VERSION_TAG, metrics_from

Key = tuple[str, str, str]
"""Task, data set and protocol."""


def arranged(
    runs: Sequence[RunRecord], *, experiment: str, metric: str = "", protocol: str = ""
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Arrange runs in groups, and say what is left out or odd.

    Args:
        runs: all that are to be compared, finished or not.
        experiment: its name, for messages.
        metric: what orders the rows; a group without it, or all where empty, take their primary one.
        protocol: the only one shown; where empty, every one that a test split was scored under.

    Raises:
        InputError: no such metric or protocol, nothing that can be compared, or a run's records are damaged.
    """
    finished = sorted(
        (run for run in runs if run.status == "FINISHED"), key=lambda run: run.ended, reverse=True
    )
    notes = [*_left_out("not finished", [run for run in runs if run.status != "FINISHED"])]
    notes += _left_out("without scores to show", [run for run in finished if not _protocols(run, protocol)])
    by_key: dict[Key, list[RunRecord]] = defaultdict(list)
    for run in finished:
        for name in _protocols(run, protocol):
            by_key[run.tags.get("task", ""), run.tags.get("dataset", ""), name].append(run)
    if not by_key and protocol:
        scored = {name for run in finished for name in _protocols(run, "")}
        raise unknown("protocol", protocol, scored, f" Those are what the runs of {experiment!r} have.")
    if not by_key:
        raise InputError(f"experiment {experiment!r} has nothing to compare yet; {'; '.join(notes)}")
    notes += _protocols_apart([*by_key])
    groups = tuple(_group(key, by_key[key], metric, notes) for key in sorted(by_key))
    if metric and not any(group.metric and group.metric.name == metric for group in groups):
        known = {known.name for group in groups for known in group.metrics}
        had = any(metric in row.values for group in groups for row in group.rows)
        hint = " Runs have it, but no record says whether high values of it are good." if had else ""
        raise unknown("metric", metric, known, hint)
    return groups, tuple(notes)


def _protocols(run: RunRecord, only: str) -> set[str]:
    """Return the protocols of a run's scores: `only`, or its own and others of test splits."""
    own = run.tags.get("protocol", "")
    return {name for name in _scored(run) if (name == only if only else name == own or is_for_test(name))}


def _scored(run: RunRecord) -> set[str]:
    """Return what stands before the slash in the names of a run's metrics: its protocols, `train`, `dev` and others."""
    return {name.partition("/")[0] for name in run.metrics}


def _protocols_apart(keys: Sequence[Key]) -> Iterator[str]:
    """Say where the runs of one task and data set were scored under several protocols."""
    protocols: dict[tuple[str, str], list[str]] = defaultdict(list)
    for task, dataset, protocol in sorted(keys):
        protocols[task, dataset].append(protocol)
    for (task, dataset), names in protocols.items():
        if len(names) > 1:
            yield (
                f"{task} · {dataset} has a table each for the protocols {', '.join(names)}, whose numbers cannot be "
                "compared"
            )


def _group(key: Key, runs: Sequence[RunRecord], metric: str, notes: list[str]) -> Group:
    """Arrange one group's runs, latest first, in rows; what is odd about them is added to `notes`."""
    task, dataset, protocol = key
    recipes = {run.tags.get("recipe", "") for run in runs}
    own, usual = deviations(runs, protocol)
    rows: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        recipe = run.tags.get("recipe", "") if len(recipes) > 1 else ""
        rows[", ".join(part for part in (_label(run), recipe, named(own[run.run_id])) if part)].append(run)
    title = f"{task} · {dataset} · {protocol}"
    metrics, odd = _described(title, runs, protocol)
    notes += odd
    versions = sorted({run.tags.get(VERSION_TAG + protocol, "1") for run in runs})
    if len(versions) > 1:
        notes.append(
            f"{title}: scored by versions {' and '.join(versions)} of the protocol, whose numbers cannot be compared; "
            "`python -m pipelines.evaluate RUN_ID` scores a run by the present one"
        )
    all_rows = []
    for label, group in rows.items():
        latest = {run.tags.get("seed", ""): run for run in reversed(group)}
        notes += _run_again(f"{label} ({protocol})", group, latest)
        of_seeds = [latest[seed] for seed in sorted(latest, key=lambda seed: (len(seed), seed))]
        all_rows.append(_row(label, of_seeds, protocol, settings=own[of_seeds[0].run_id]))
    notes += _missing_seeds(title, all_rows)
    shown = [run for row in all_rows for run in row.runs]
    notes += [*left_out_notes(title, shown), *code_notes(title, shown)]
    had = {name for row in all_rows for name in row.values}
    primary = metrics[0] if metrics else None
    chosen = next((m for m in (*metrics, SECONDS) if m.name == metric and metric in had and metrics), primary)
    return Group(
        task=task,
        dataset=dataset,
        protocol=protocol,
        rows=ordered(all_rows, chosen),
        metric=chosen,
        metrics=metrics,
        published=sources(runs),
        usual=usual,
    )


def _described(title: str, runs: Sequence[RunRecord], protocol: str) -> tuple[tuple[Metric, ...], list[str]]:
    """Return what the runs of a group say their metrics mean, the latest one's first, and what is odd about it."""
    metrics: dict[str, Metric] = {}
    without, different = [], []
    for run in runs:
        records = metrics_from(run.tags, protocol, run=run.run_id)
        if not records:
            without.append(run.name or run.run_id)
        for record in records:
            first = metrics.setdefault(record.name, record)
            if differing := [
                name for name in _MEANING if not _same(getattr(first, name), getattr(record, name))
            ]:
                different.append(f"{record.name} of run {run.run_id} has another {' and '.join(differing)}")
    notes = []
    if different:
        more = f", and {len(different) - 1} more" if len(different) > 1 else ""
        notes.append(
            f"{title}: runs describe metrics differently, and the latest one counts: {different[0]}{more}"
        )
    if without:
        listed = ", ".join(without[:4]) + (f" and {len(without) - 4} more" if len(without) > 4 else "")
        then = "they are read like the others" if metrics else "nothing is ranked, normalised or tested"
        notes.append(
            f"{title}: recorded by an earlier version, which did not say what metrics mean, so {then}: {listed}; "
            "`python -m pipelines.evaluate RUN_ID` adds it"
        )
    return tuple(metrics.values()), notes


_MEANING = ("higher_is_better", "best", "chance", "unit")


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return one == other


def _specs(run: RunRecord) -> tuple[str, ...]:
    """Return the spec of a run's aggregator, and that of the text's where it differs."""
    own = run.tags.get("aggregator", "?")
    text = run.tags.get("text_aggregator", own)
    return (own,) if text == own else (own, text)


def _aggregator(run: RunRecord) -> str:
    """Name the aggregator of a run, and the text's where that differs."""
    return ", text ".join(_specs(run))


def _label(run: RunRecord) -> str:
    """Name what a run compares: its aggregator, and the model around it."""
    kind, model = run.tags.get("kind", "train"), run.tags.get("model", "")
    return ("" if kind == "train" else f"{kind}: ") + _aggregator(run) + (f" in {model}" if model else "")


def _row(label: str, runs: Sequence[RunRecord], protocol: str, *, settings: Settings) -> Row:
    names = [name.removeprefix(f"{protocol}/") for name in runs[0].metrics if name.startswith(f"{protocol}/")]
    columns = {name: f"{protocol}/{name}" for name in names} | {SECONDS.name: "time/train_seconds"}
    values = {
        name: tuple(run.metrics[key] for run in runs)
        for name, key in columns.items()
        if all(key in run.metrics for run in runs)
    }
    tags, published = runs[0].tags, {}
    trained = tags.get("kind", "train") == "train"
    if numbers := published_numbers(runs[0]):
        own = {
            name.removeprefix(f"{protocol}/"): x
            for name, x in numbers.items()
            if name.startswith(f"{protocol}/")
        }
        published = own if own and not settings and all(map(follows_recipe, runs)) else {}
    return Row(
        label=label,
        aggregator=_aggregator(runs[0]) if trained else "",
        specs=_specs(runs[0]) if trained else (),
        recipe=tags.get("recipe", ""),
        model=tags.get("model", ""),
        settings=named(settings),
        own_protocol=2 * sum(run.tags.get("protocol", "") == protocol for run in runs) >= len(runs),
        seeds=tuple(run.tags.get("seed", "") for run in runs),
        values=values,
        published=published,
        runs=tuple(runs),
    )


def _run_again(row: str, group: Sequence[RunRecord], latest: dict[str, RunRecord]) -> Iterator[str]:
    """Say where a seed ran more than once."""
    for seed in sorted(latest):
        times = sum(run.tags.get("seed", "") == seed for run in group)
        if times > 1:
            named = f"seed {seed}" if seed else "without a seed"
            yield f"{row} {named} finished {times} times; the latest is shown, run {latest[seed].run_id}"


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
