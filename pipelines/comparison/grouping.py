"""Groups of comparable runs: labels name the settings in which rows differ, notes the inconsistencies."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import PurePath
from typing import TypeVar

import pandas as pd

from polypool.infra.errors import InputError, unknown
from polypool.infra.tracking import PACKAGES, RunRecord, flattened
from polypool.pipelines.comparison.rows import SECONDS, Group, Row, group_title
from polypool.pipelines.recipes.load import published_text
from polypool.pipelines.training.record import PRECISION, text_of, tuned_of
from polypool.tasks.adapter import Metric
from polypool.tasks.run import OF_THE_JOINT_RUN, REGISTRIES, WITHOUT_EFFECT, Data, Optim, Run
from polypool.tasks.scoring.protocols import is_for_test, warnings_of
from polypool.tasks.scoring.records import LEFT_OUT, ORIGIN, TAG, TRAINED_ON, VERSION_TAG, metrics_from

DIGESTS = ("data.corpus", "data.features", "data.texts")
"""Paths among the settings; tags of the same names hold digests of their content."""
HAVE_SETTINGS = ("train", "transfer")
"""Kinds of runs with the settings of a training, which distinguish rows."""
_LOGGED = {"step": "cost/step", "embed": "cost/embed", "query": "cost/query", "bytes": "bytes/item"}
"""Metrics of a run's costs."""
_SHOWN = {"recipe", "task", "aggregator", "text_aggregator", "seed", "protocol", "data.dataset", "test"}
"""Settings that a table's title, a row's label, its number of runs or its scores already show."""
SUMMARIES = ("comparison", "sweep")
"""Kinds of runs that summarise others and have no scores."""

Key = tuple[str, str, str, str, str]
"""Task, data set of training if another, data set, protocol, and the tuning in words."""
ReadArtifact = Callable[[RunRecord, str], bytes]
"""Returns an artifact of a run by its name, or raises InputError."""
Settings = Mapping[str, str]
T = TypeVar("T")


def arranged(
    runs: Sequence[RunRecord],
    *,
    experiment: str,
    metric: str = "",
    protocol: str = "",
    read: ReadArtifact,
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Return groups of runs, and notes on runs that are left out or inconsistent.

    Args:
        runs: finished or not.
        experiment: its name, for messages.
        metric: orders the rows; groups without it, and all groups if it is empty, take their primary metric.
        protocol: the only one shown; if empty, every protocol with scores of a test split.
        read: returns an artifact of a run by its name.

    Raises:
        InputError: unknown metric or protocol, nothing to compare, or a run's records are damaged.
    """
    finished = [run for run in runs if run.status == "FINISHED"]
    finished.sort(key=lambda run: run.ended or 0.0, reverse=True)
    notes, by_key = [], defaultdict[Key, list[RunRecord]](list)
    for why, left in (
        ("not finished", [run for run in runs if run.status != "FINISHED"]),
        ("without scores to show", [run for run in finished if not protocols_shown(run, protocol)]),
    ):
        if names := [f"{run.name or run.run_id} ({run.status.lower()})" for run in left]:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            notes.append(
                f"{len(left)} run{'s' * (len(left) > 1)} left out, {why}: {', '.join(names[:8])}{more}"
            )
    for run in finished:
        tuned = tuned_of(run.tags, run=run.run_id)
        for name in protocols_shown(run, protocol):
            task, trained_on, dataset = (run.tags.get(tag, "") for tag in ("task", TRAINED_ON, "dataset"))
            by_key[task, trained_on, dataset, name, tuned.words if tuned else ""].append(run)
    if not by_key and protocol:
        scored = {name for run in finished for name in protocols_shown(run)}
        raise unknown("protocol", protocol, scored, f" The runs of {experiment!r} have these.")
    if not by_key:
        raise InputError(f"experiment {experiment!r} has nothing to compare yet; {'; '.join(notes)}")
    for data, keys in groupby(sorted(by_key), key=itemgetter(0, 1, 2)):
        names = [*dict.fromkeys(name for *_, name, _ in keys)]
        if len(names) > 1:
            notes.append(
                f"{group_title(*data)} has a table each for the protocols {', '.join(names)}, whose numbers cannot be "
                "compared"
            )
    notes += warnings_of(name for *_, name, _ in sorted(by_key))
    groups = tuple(_group(key, by_key[key], metric, notes, read) for key in sorted(by_key))
    if metric and not any(group.metric.name == metric for group in groups):
        raise unknown("metric", metric, {known.name for group in groups for known in group.metrics})
    return groups, tuple(notes)


def protocols_shown(run: RunRecord, only: str = "") -> set[str]:
    """Return the protocols of a run's described scores: `only`, or its own and those that score a test split."""
    scored = {name.partition("/")[0] for name in run.metrics if TAG + name.partition("/")[0] in run.tags}
    own = run.tags.get("protocol", "")
    return {name for name in scored if (name == only if only else name == own or is_for_test(name))}


def _group(key: Key, runs: Sequence[RunRecord], metric: str, notes: list[str], read: ReadArtifact) -> Group:
    """Arrange a group's runs, latest first, in rows, and add notes on inconsistencies."""
    task, trained_on, dataset, protocol, tuned = key
    several = len({run.tags.get("recipe", "") for run in runs}) > 1
    own, usual = deviations(runs, protocol)
    by_label: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for run in runs:
        recipe = run.tags.get("recipe", "") if several else ""
        parts, how = (_label(run), recipe, named(own[run.run_id])), tuned_of(run.tags, run=run.run_id)
        by_label[", ".join(filter(None, parts)), text_of(how.chosen) if how else ""].append(run)
    title, described = group_title(*key), dict[str, Metric]()
    for run in runs:  # the latest run's records count
        for record in metrics_from(run.tags, protocol, run=run.run_id, read=partial(read, run)):
            described.setdefault(record.name, record)
    metrics = tuple(described.values())
    versions = sorted({run.tags.get(VERSION_TAG + protocol, "1") for run in runs})
    if len(versions) > 1:
        notes.append(
            f"{title}: scored by versions {' and '.join(versions)} of the protocol, whose numbers cannot be compared; "
            "`polypool evaluate RUN_ID` scores a run by the present one"
        )
    labels, rows = Counter(label for label, _ in by_label), []
    for (label, chosen), group in by_label.items():
        label += f", chosen {chosen}" if labels[label] > 1 else ""
        times = Counter(run.tags.get("seed", "") for run in group)
        latest = {run.tags.get("seed", ""): run for run in reversed(group)}
        for seed in sorted(seed for seed in latest if times[seed] > 1):
            of = f"seed {seed}" if seed else "without a seed"
            shown = f"the latest is shown, run {latest[seed].run_id}"
            notes.append(f"{label} ({protocol}) {of} finished {times[seed]} times; {shown}")
        of_seeds = [latest[seed] for seed in sorted(latest, key=lambda seed: (len(seed), seed))]
        rows.append(_row(label, of_seeds, protocol, own[of_seeds[0].run_id], chosen))
    notes += [*_missing_seeds(title, rows), *notes_on(title, [run for row in rows for run in row.runs])]
    had = {name for row in rows for name in row.values}
    first = next((m for m in (*metrics, SECONDS) if m.name == metric and metric in had), metrics[0])

    def order(row: Row) -> tuple[bool, float, str]:
        mean = row.mean(first.name)
        return math.isnan(mean), 0.0 if math.isnan(mean) else -first.sign * mean, row.label

    published = {
        f"{run.tags.get('recipe', '')}: {published_text(numbers, run.params.get('source', ''))}"
        for run in runs
        if (numbers := _published(run))
    }
    return Group(
        task=task,
        dataset=dataset,
        protocol=protocol,
        trained_on=trained_on,
        rows=tuple(sorted(rows, key=order)),
        metric=first,
        metrics=metrics,
        published=tuple(sorted(published)),
        usual=usual,
        tuned=tuned,
    )


def _aggregator(run: RunRecord) -> str:
    """Return a run's aggregator with the text's if different; of a tuned run, with the values of its options."""
    if tuned := tuned_of(run.tags, run=run.run_id):
        return tuned.named
    own = run.tags.get("aggregator", "?")
    return ", text ".join(dict.fromkeys((own, run.tags.get("text_aggregator", own))))


def _label(run: RunRecord) -> str:
    kind, model = run.tags.get("kind", "train"), run.tags.get("model", "")
    start = "" if kind in HAVE_SETTINGS else f"{kind}: "
    return start + _aggregator(run) + (f" in {model}" if model else "")


def _row(label: str, runs: Sequence[RunRecord], protocol: str, settings: Settings, chosen: str) -> Row:
    first, own = runs[0], f"{protocol}/"
    trained = first.tags.get("kind", "train") in HAVE_SETTINGS
    columns = _within(own, {name: name for name in first.metrics}) | {SECONDS.name: "time/train_seconds"}
    tuned = tuned_of(first.tags, run=first.run_id)
    of_parts = {*settings} <= {*REGISTRIES}  # published numbers are not for other settings
    costs: dict[str, float] = {}
    points = tuned.points(weights=first.metrics.get("weights/aggregators") != 0) if tuned else 0
    if trained:
        costs["weights"] = statistics.fmean(run.metrics.get("weights/aggregators", math.nan) for run in runs)
        for name, key in _LOGGED.items():
            if found := [run.metrics[key] for run in runs if run.metrics.get(key, math.nan) >= 0]:
                costs |= {name: min(found), f"most_{name}": max(found)}
    return Row(
        label=label,
        aggregator=_aggregator(first) if trained or tuned else "",
        recipe=first.tags.get("recipe", ""),
        model=first.tags.get("model", ""),
        settings=named(settings),
        chosen=chosen,
        trials=min(tuned.budget, points) if tuned else 0,
        points=points,
        own_protocol=2 * sum(run.tags.get("protocol", "") == protocol for run in runs) >= len(runs),
        seeds=tuple(run.tags.get("seed", "") for run in runs),
        values={
            name: tuple(run.metrics[key] for run in runs)
            for name, key in columns.items()
            if all(key in run.metrics for run in runs)
        },
        published=_within(own, _published(first)) if of_parts and not tuned else {},
        costs=costs,
        runs=tuple(runs),
    )


def _within(start: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return the values whose names start with a prefix, without the prefix."""
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _published(run: RunRecord) -> dict[str, float]:
    """Return the published numbers of the row that a run reproduces, by protocol and metric."""
    return json.loads(run.params.get("published") or "{}")


def _missing_seeds(title: str, rows: Sequence[Row]) -> Iterator[str]:
    trained = [row for row in rows if row.aggregator]
    seeds = {seed for row in trained for seed in row.seeds if seed}
    missing = {row.label: sorted(seeds - {*row.seeds}) for row in trained}
    if lacking := [f"{label} {', '.join(of)}" for label, of in missing.items() if of]:
        yield f"{title}: missing seeds, so rows are means over different seeds: {'; '.join(lacking)}"


def notes_on(title: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield notes on runs of one table: missing samples; different commits, machines, packages and extractions."""
    tags = [run.tags for run in runs]
    missing = [sorted(_within(f"data.{LEFT_OUT}", of).items()) for of in tags]
    for what, n in Counter(", ".join(f"{split} lacks {n}" for split, n in of) for of in missing).items():
        if what:
            yield f"{title}: INCOMPLETE: {n} of {len(runs)} runs skip items without features or file: {what}"
    commits = [
        of["git_commit"][:10] + " with changes" * (of.get("git_dirty") == "true")
        for of in tags
        if of.get("git_commit")
    ]
    machines = [of["machine"] for of in tags if of.get("machine")]
    for values, what in (
        (commits, "commits; rows do not show the changes"),
        (machines, "kinds of machines; do not compare costs between them"),
    ):
        counts = Counter(values).most_common()
        if len(counts) > 1:
            listed = ", ".join(f"{value} ({n})" for value, n in counts)
            yield f"{title}: runs of {len(counts)} {what}: {listed}"
    for package in ("python", *PACKAGES):
        versions = sorted({of[package] for of in tags if package in of})
        if len(versions) > 1:
            yield f"{title}: runs with {package} {' and '.join(versions)}"
    for name in DIGESTS:
        found = {(of[name + ORIGIN], of.get(name)) for of in tags if of.get(name + ORIGIN)}
        if len(found) > len({origin for origin, _ in found}):
            yield f"{title}: {name} was extracted with the same settings on several machines, and differs by rounding"


def deviations(runs: Sequence[RunRecord], protocol: str) -> tuple[dict[str, Settings], tuple[str, ...]]:
    """Return the settings in which each run differs from the others of its recipe and model.

    Args:
        runs: of one task, data set and protocol.
        protocol: of their scores.

    Returns:
        By run id, the settings that differ from the value of more than half of the runs; without such a majority, every
        run's value. And the values of the majority, a sentence for each recipe and model.
    """
    groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for run in runs:
        if run.tags.get("kind", "train") in HAVE_SETTINGS:
            groups[run.tags.get("recipe", ""), run.tags.get("model", "")].append(run)
    own: dict[str, Settings] = {run.run_id: {} for run in runs}
    usual = []
    for (recipe, model), group in sorted(groups.items()):
        table = pd.DataFrame(_settings(group, protocol)).fillna("").sort_index(axis="columns")
        table = table.loc[:, table.nunique() > 1]
        shares = {name: of.value_counts(normalize=True) for name, of in table.items()}
        common = {str(name): str(of.index[0]) for name, of in shares.items() if of.iloc[0] > 0.5}
        for run, (_, of) in zip(group, table.iterrows(), strict=True):
            own[run.run_id] = {name: value for name, value in of.items() if value != common.get(name)}
        if common:
            of = (f" of {recipe}" if len(groups) > 1 else "") + (f" in {model}" if model else "")
            usual.append(f"where a row{of} does not say otherwise, {named(common)}")
    return own, tuple(usual)


def named(settings: Settings) -> str:
    """Return settings as in a row's label: `optim.epochs=1, objective=triplet`; `zero-shot` for 0 epochs."""
    words = {name: f"{name}={value or 'none'}" for name, value in settings.items()}
    if settings.get("optim.epochs") == "0":
        words["optim.epochs"] = "zero-shot"
    return ", ".join(words.values())


def _settings(runs: Sequence[RunRecord], protocol: str) -> list[dict[str, str]]:
    """Return the settings of each run that affect results; those that it did not record have their defaults."""
    params = [run.settings for run in runs]
    own = {field.name: field.default for field in fields(Run) if field.default is not MISSING}
    own["data"] = {field.name: field.default for field in fields(Data) if field.default is not MISSING}
    known, defaults = {*chain(*params)}, [*flattened(own | {"optim": asdict(Optim())})]
    settings = [{name: value for name, value in defaults if name in known} | of for of in params]
    for name in DIGESTS:
        if all(run.tags.get(name) for run in runs):
            # data are named by path, or by origin (else digest) if paths and contents do not correspond one to one
            origins = {run.tags[name]: run.tags[name + ORIGIN] for run in runs if run.tags.get(name + ORIGIN)}
            digests = [origins.get(run.tags[name], run.tags[name])[:12] for run in runs]
            paths = [of.get(name, "") for of in params]
            one_to_one = len({*zip(paths, digests, strict=True)}) == len({*paths}) == len({*digests})
            if len({PurePath(path).parent for path in paths}) == 1:
                paths = [PurePath(path).name for path in paths]
            for of, value in zip(settings, paths if one_to_one else digests, strict=True):
                of[name] = value
    if all(run.tags.get(PRECISION) for run in runs):  # the precision that `auto` selected
        for of, run in zip(settings, runs, strict=True):
            of["optim.precision"] = run.tags[PRECISION]
    tuned = [tuned_of(run.tags, run=run.run_id) for run in runs]
    visual = [run.tags.get("aggregator", "") for run in runs]
    text = [run.tags.get("text_aggregator", "") or own for run, own in zip(runs, visual, strict=True)]
    name_texts = any(  # labels of tuned runs name the visual aggregator only
        how and of != own and ", text " not in how.aggregator
        for how, of, own in zip(tuned, text, visual, strict=True)
    )
    for of, how, run, other in zip(settings, tuned, runs, text, strict=True):
        of["protocol version"] = run.tags.get(VERSION_TAG + protocol, "1")
        for name in [*of]:
            start, _, member = [*name.split("."), "", ""][:3]
            repeated = start == "members" and member in OF_THE_JOINT_RUN  # equal to the joint run's
            if name in _SHOWN or name in WITHOUT_EFFECT or repeated or (how and name in how.settings):
                del of[name]
        if name_texts:
            of["text_aggregator"] = other
    return settings
