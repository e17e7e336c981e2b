"""Arrangement of an experiment's runs in groups of rows, with notes on what is left out or inconsistent."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from polypool.infra.errors import InputError, unknown
from polypool.infra.registry import RECIPES
from polypool.infra.tracking import RunRecord
from polypool.pipelines.comparison.groups import SECONDS, Costs, Group, Row, costs_of, group_title, ordered
from polypool.pipelines.comparison.row_settings import (
    HAVE_SETTINGS,
    Settings,
    code_notes,
    deviations,
    left_out_notes,
    machine_notes,
    named,
)
from polypool.pipelines.recipes.load import Ensemble, published_text
from polypool.pipelines.training.record import text_of, tuned_of
from polypool.tasks.adapter import Metric
from polypool.tasks.scoring.protocols import is_for_test, warnings_of
from polypool.tasks.scoring.records import TAG, TRAINED_ON, VERSION_TAG, metrics_from

Key = tuple[str, str, str, str, str]
"""Task, data set of training where it is another, data set, protocol, and how settings were tuned."""
ReadArtifact = Callable[[RunRecord, str], bytes]
"""Returns an artifact of a run by its name, or raises InputError."""
T = TypeVar("T")

_SUMMARIES = ("comparison", "sweep")  # kinds of runs that summarise others and have no scores


def arranged(
    runs: Sequence[RunRecord],
    *,
    experiment: str,
    metric: str = "",
    protocol: str = "",
    read: ReadArtifact,
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Return groups of runs, and notes on what is left out or inconsistent.

    Args:
        runs: finished or not.
        experiment: its name, for messages.
        metric: orders the rows; a group without it takes its primary one, as all do if it is empty.
        protocol: the only one shown; if empty, every one under which a test split was scored.
        read: returns an artifact of a run by its name.

    Raises:
        InputError: no such metric or protocol, nothing that can be compared, or a run's records are damaged.
    """
    finished = sorted(
        (run for run in runs if run.status == "FINISHED"), key=lambda run: run.ended or 0.0, reverse=True
    )
    notes = [*_left_out("not finished", [run for run in runs if run.status != "FINISHED"])]
    notes += _left_out(
        "without scores to show", [run for run in finished if not protocols_shown(run, protocol)]
    )
    by_key: dict[Key, list[RunRecord]] = defaultdict(list)
    for run in finished:
        tuned = tuned_of(run.tags, run=run.run_id)
        for name in protocols_shown(run, protocol):
            task, trained_on, dataset = (run.tags.get(tag, "") for tag in ("task", TRAINED_ON, "dataset"))
            by_key[task, trained_on, dataset, name, tuned.words if tuned else ""].append(run)
    if not by_key and protocol:
        scored = {name for run in finished for name in protocols_shown(run)}
        raise unknown("protocol", protocol, scored, f" Those are what the runs of {experiment!r} have.")
    if not by_key:
        raise InputError(f"experiment {experiment!r} has nothing to compare yet; {'; '.join(notes)}")
    notes += [*_protocols_apart(by_key), *warnings_of(name for *_, name, _ in sorted(by_key))]
    groups = tuple(_group(key, by_key[key], metric, notes, read) for key in sorted(by_key))
    if metric and not any(group.metric.name == metric for group in groups):
        raise unknown("metric", metric, {known.name for group in groups for known in group.metrics})
    return groups, tuple(notes)


def is_for_tables(run: RunRecord) -> bool:
    """Whether a run scores a test split, as those do not that summarise others or help to choose settings."""
    return run.tags.get("kind") not in _SUMMARIES and run.params.get("test") != "False"


def protocols_shown(run: RunRecord, only: str = "") -> set[str]:
    """Return the protocols of a run's described scores: `only`, or its own and others of test splits."""
    own, scored = run.tags.get("protocol", ""), {name.partition("/")[0] for name in run.metrics}
    return {
        name
        for name in scored
        if TAG + name in run.tags and (name == only if only else name == own or is_for_test(name))
    }


def _protocols_apart(keys: Iterable[Key]) -> Iterator[str]:
    for data, of in groupby(sorted(keys), key=itemgetter(0, 1, 2)):
        names = [*dict.fromkeys(protocol for *_, protocol, _ in of)]
        if len(names) > 1:
            yield (
                f"{group_title(*data)} has a table each for the protocols {', '.join(names)}, whose numbers cannot be "
                "compared"
            )


def _group(key: Key, runs: Sequence[RunRecord], metric: str, notes: list[str], read: ReadArtifact) -> Group:
    """Arrange one group's runs, latest first, in rows, and add to `notes` what is inconsistent."""
    task, trained_on, dataset, protocol, tuned = key
    recipes = {run.tags.get("recipe", "") for run in runs}
    own, usual = deviations(runs, protocol)
    rows: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for run in runs:
        recipe = run.tags.get("recipe", "") if len(recipes) > 1 else ""
        label = ", ".join(part for part in (_label(run), recipe, named(own[run.run_id])) if part)
        rows[label, _chosen(run)].append(run)
    alike = Counter(label for label, _ in rows)
    title = group_title(*key)
    metrics = _described(title, runs, protocol, notes, read)
    versions = sorted({run.tags.get(VERSION_TAG + protocol, "1") for run in runs})
    if len(versions) > 1:
        notes.append(
            f"{title}: scored by versions {' and '.join(versions)} of the protocol, whose numbers cannot be compared; "
            "`polypool evaluate RUN_ID` scores a run by the present one"
        )
    all_rows = []
    for (label, chosen), group in rows.items():
        label += f", chosen {chosen}" if alike[label] > 1 else ""
        latest = {run.tags.get("seed", ""): run for run in reversed(group)}
        notes += _run_again(f"{label} ({protocol})", group, latest)
        of_seeds = [latest[seed] for seed in sorted(latest, key=lambda seed: (len(seed), seed))]
        all_rows.append(_row(label, of_seeds, protocol, settings=own[of_seeds[0].run_id]))
    notes += _missing_seeds(title, all_rows)
    shown = [run for row in all_rows for run in row.runs]
    notes += [*left_out_notes(title, shown), *code_notes(title, shown), *machine_notes(title, shown)]
    had = {name for row in all_rows for name in row.values}
    chosen = next((m for m in (*metrics, SECONDS) if m.name == metric and metric in had), metrics[0])
    return Group(
        task=task,
        dataset=dataset,
        protocol=protocol,
        trained_on=trained_on,
        rows=ordered(all_rows, chosen),
        metric=chosen,
        metrics=metrics,
        published=tuple(sorted({line for run in runs for line in _source(run)})),
        usual=usual,
        tuned=tuned,
    )


def _described(
    title: str, runs: Sequence[RunRecord], protocol: str, notes: list[str], read: ReadArtifact
) -> tuple[Metric, ...]:
    """Return the metrics that the runs of a group describe, the latest run's first."""
    metrics: dict[str, Metric] = {}
    different = []
    for run in runs:
        for record in metrics_from(run.tags, protocol, run=run.run_id, read=partial(read, run)):
            first = metrics.setdefault(record.name, record)
            if fields := [
                name for name in _MEANING if not _same(getattr(first, name), getattr(record, name))
            ]:
                different.append(f"{record.name} of run {run.run_id} has another {' and '.join(fields)}")
    if different:
        more = f", and {len(different) - 1} more" if len(different) > 1 else ""
        notes.append(
            f"{title}: runs describe metrics differently, and the latest one counts: {different[0]}{more}"
        )
    return tuple(metrics.values())


_MEANING = ("higher_is_better", "best", "chance", "unit")


def _same(one: bool | float | str, other: bool | float | str) -> bool:
    if isinstance(one, float) and isinstance(other, float) and not math.isnan(one):
        return math.isclose(one, other, rel_tol=1e-6)
    return str(one) == str(other)


def _specs(run: RunRecord) -> tuple[str, ...]:
    """Return the spec of a run's aggregator, and that of the text's if it differs."""
    own = run.tags.get("aggregator", "?")
    return tuple(dict.fromkeys((own, run.tags.get("text_aggregator", own))))


def _label(run: RunRecord) -> str:
    kind, model = run.tags.get("kind", "train"), run.tags.get("model", "")
    aggregator = ", text ".join(_specs(run))
    if (tuned := tuned_of(run.tags, run=run.run_id)) is not None:
        aggregator = tuned.named
    return ("" if kind in HAVE_SETTINGS else f"{kind}: ") + aggregator + (f" in {model}" if model else "")


def _chosen(run: RunRecord) -> str:
    """Return what tuning chose for a run, as text."""
    tuned = tuned_of(run.tags, run=run.run_id)
    return text_of(tuned.chosen) if tuned else ""


def _row(label: str, runs: Sequence[RunRecord], protocol: str, *, settings: Settings) -> Row:
    first, own = runs[0], f"{protocol}/"
    trained = first.tags.get("kind", "train") in HAVE_SETTINGS
    columns = _within(own, {name: name for name in first.metrics}) | {SECONDS.name: "time/train_seconds"}
    tuned = tuned_of(first.tags, run=first.run_id)
    published = {} if tuned else _within(own, published_numbers(first))
    return Row(
        label=label,
        aggregator=tuned.named if tuned else ", text ".join(_specs(first)) if trained else "",
        specs=_specs(first) if trained else (),
        recipe=first.tags.get("recipe", ""),
        model=first.tags.get("model", ""),
        settings=named(settings),
        chosen=_chosen(first),
        own_protocol=2 * sum(run.tags.get("protocol", "") == protocol for run in runs) >= len(runs),
        seeds=tuple(run.tags.get("seed", "") for run in runs),
        values={
            name: tuple(run.metrics[key] for run in runs)
            for name, key in columns.items()
            if all(key in run.metrics for run in runs)
        },
        published=published if published and not settings and all(map(_follows_recipe, runs)) else {},
        costs=costs_of(runs) if trained else Costs(),
        runs=tuple(runs),
    )


def _within(start: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return the values whose names begin with `start`, under the rest of their names."""
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def published_numbers(run: RunRecord) -> dict[str, float]:
    """Return the numbers that a run's recipe aims at, by protocol and metric.

    Raises:
        InputError: the run's record of them is damaged.
    """
    text = run.params.get("published") or "{}"
    try:
        return {str(name): float(value) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"run {run.run_id}: its setting `published` is {text!r}, expected numbers by protocol and metric"
        ) from None


def _source(run: RunRecord) -> Iterator[str]:
    """Yield which numbers a run's recipe aims at and their source, if there are any."""
    if numbers := published_numbers(run):
        yield f"{run.tags.get('recipe', '')}: {published_text(numbers, run.params.get('source', ''))}"


def _follows_recipe(run: RunRecord) -> bool:
    """Whether a run has the aggregators and the model of its recipe, so that published numbers apply to it."""
    name, tags = run.tags.get("recipe", ""), run.tags
    if name not in RECIPES.names():
        return False
    try:
        recipe = RECIPES.get(name)()
    except InputError:  # a plug-in that can no longer be used
        return False
    if isinstance(recipe, Ensemble):
        return tags.get("kind") == "ensemble"
    own, model = tags.get("aggregator", ""), recipe.model.partition("(")[0]
    expected = (recipe.aggregator, recipe.text_aggregator or recipe.aggregator, model)
    return (own, tags.get("text_aggregator", own), tags.get("model", "")) == expected


def _run_again(row: str, group: Sequence[RunRecord], latest: dict[str, RunRecord]) -> Iterator[str]:
    for seed in sorted(latest):
        times = sum(run.tags.get("seed", "") == seed for run in group)
        if times > 1:
            named = f"seed {seed}" if seed else "without a seed"
            yield f"{row} {named} finished {times} times; the latest is shown, run {latest[seed].run_id}"


def _missing_seeds(group: str, rows: Sequence[Row]) -> Iterator[str]:
    trained = [row for row in rows if row.aggregator]
    seeds = {seed for row in trained for seed in row.seeds if seed}
    if unnoted := [row.label for row in trained if "" in row.seeds]:
        yield f"{group}: which seed a run had is not noted, in the tag `seed`: {', '.join(unnoted)}"
    lacking = [
        f"{row.label} {', '.join(sorted(seeds - {*row.seeds}))}" for row in trained if seeds - {*row.seeds}
    ]
    if lacking:
        yield f"{group}: seeds are missing, so rows are means over different ones: {'; '.join(lacking)}"


def _left_out(why: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    if runs:
        listed = _listed([f"{run.name or run.run_id} ({run.status.lower()})" for run in runs], 8)
        yield f"{len(runs)} run{'s' * (len(runs) > 1)} left out, {why}: {listed}"


def _listed(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
