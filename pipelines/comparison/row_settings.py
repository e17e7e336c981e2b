"""Settings in which the runs of a group differ, shown in the labels of their rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from itertools import chain

from polypool.infra.tracking import PACKAGES, RunRecord, flattened
from polypool.pipelines.training.record import PRECISION, Tuned, tuned_of
from polypool.tasks.run import OF_THE_JOINT_RUN, WITHOUT_EFFECT, Data, Optim, Run
from polypool.tasks.scoring.records import LEFT_OUT, ORIGIN, VERSION_TAG

_SHOWN = {"recipe", "task", "aggregator", "text_aggregator", "seed", "protocol", "data.dataset"}
"""Settings that the title of a table, the label of a row or its number of runs show."""
DIGESTS = ("data.corpus", "data.features", "data.texts")
"""Settings that are paths, and tags with the digest of their content."""
HAVE_SETTINGS = ("train", "transfer")
"""Kinds of runs that record the settings of a training, by which rows are told apart."""
Settings = Mapping[str, str]


def deviations(runs: Sequence[RunRecord], protocol: str) -> tuple[dict[str, Settings], tuple[str, ...]]:
    """Return in which settings each run differs from the others of its recipe and model.

    Args:
        runs: of one task, data set and protocol.
        protocol: under which they were scored.

    Returns:
        By run id, the settings whose value more than half of the runs do not share; for a setting without such a value,
        that of every run. And the values of the majority, a sentence for each recipe and model.
    """
    groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for run in runs:
        if run.tags.get("kind", "train") in HAVE_SETTINGS:
            groups[run.tags.get("recipe", ""), run.tags.get("model", "")].append(run)
    own: dict[str, Settings] = {run.run_id: {} for run in runs}
    usual = []
    for (recipe, model), group in sorted(groups.items()):
        settings = _settings(group, protocol)
        values = {name: [of.get(name, "") for of in settings] for name in sorted({*chain(*settings)})}
        differing = {name: _most(of) for name, of in values.items() if len({*of}) > 1}
        for run, of in zip(group, settings, strict=True):
            own[run.run_id] = {
                name: of.get(name, "") for name, most in differing.items() if of.get(name, "") != most
            }
        if common := {name: most for name, most in differing.items() if most is not None}:
            of = (f" of {recipe}" if len(groups) > 1 else "") + (f" in {model}" if model else "")
            usual.append(f"where a row{of} does not say otherwise, {named(common)}")
    return own, tuple(usual)


def named(settings: Settings) -> str:
    """Return settings as in the label of a row: `optim.epochs=1, objective=triplet`; 0 epochs are `zero-shot`."""
    words = {name: f"{name}={value or 'none'}" for name, value in settings.items()}
    if settings.get("optim.epochs") == "0":
        words["optim.epochs"] = "zero-shot"
    return ", ".join(words.values())


def code_notes(title: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield notes on runs of one table that were trained by different code or versions of packages."""
    tags = [run.tags for run in runs if run.tags.get("git_commit")]
    commits = Counter(
        of["git_commit"][:10] + " with changes" * (of.get("git_dirty") == "true") for of in tags
    )
    if len(commits) > 1:
        counted = ", ".join(f"{commit} ({count})" for commit, count in commits.most_common())
        yield f"{title}: its runs are of {len(commits)} states of the code, whose changes no row shows: {counted}"
    for package in ("python", *PACKAGES):
        versions = sorted({run.tags[package] for run in runs if package in run.tags})
        if len(versions) > 1:
            yield f"{title}: its runs used {package} {' and '.join(versions)}"


def machine_notes(title: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield notes on runs of one table from several kinds of machines, and on features that differ by rounding."""
    machines = Counter(run.tags["machine"] for run in runs if run.tags.get("machine"))
    if len(machines) > 1:
        counted = ", ".join(f"{machine} ({count})" for machine, count in machines.most_common())
        kinds = f"{len(machines)} kinds of machines, between which costs cannot be compared"
        yield f"{title}: its runs are of {kinds}: {counted}"
    for name in DIGESTS:
        found = defaultdict[str, set[str]](set)
        for run in runs:
            found[run.tags.get(name + ORIGIN, "")].add(run.tags.get(name, ""))
        if any(origin and len(digests) > 1 for origin, digests in found.items()):
            yield f"{title}: {name} was extracted with the same settings on several machines, and differs by rounding"


def left_out_notes(title: str, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield notes on runs whose splits lack samples without features or files."""
    start, counted = f"data.{LEFT_OUT}", Counter[str]()
    for run in runs:
        left = sorted((name.removeprefix(start), n) for name, n in run.tags.items() if name.startswith(start))
        counted[", ".join(f"{split} lacks {n}" for split, n in left)] += 1
    del counted[""]  # nothing
    for what, n in counted.items():
        yield f"{title}: INCOMPLETE, what has no features or file is left out of {n} of {len(runs)} runs: {what}"


def _settings(runs: Sequence[RunRecord], protocol: str) -> list[dict[str, str]]:
    """Return the settings that affect results; those that were added after a run have their defaults."""
    params = [run.settings for run in runs]
    known = {*chain(*params)}
    defaults = {name: value for name, value in _defaults().items() if name in known}
    contents = {
        name: _contents(_identities(runs, name), [of.get(name, "") for of in params])
        for name in DIGESTS
        if all(run.tags.get(name) for run in runs)
    }
    computed = all(run.tags.get(PRECISION) for run in runs)  # what `auto` was
    all_settings = [
        defaults
        | of
        | {name: values[number] for name, values in contents.items()}
        | ({"optim.precision": run.tags[PRECISION]} if computed else {})
        | {"protocol version": run.tags.get(VERSION_TAG + protocol, "1")}
        for number, (run, of) in enumerate(zip(runs, params, strict=True))
    ]
    tuned = [tuned_of(run.tags, run=run.run_id) for run in runs]
    chosen = [how.settings if how else () for how in tuned]
    return [
        {name: value for name, value in of.items() if not _hidden(name) and name not in names} | text
        for of, names, text in zip(all_settings, chosen, _text_aggregators(runs, tuned), strict=True)
    ]


def _identities(runs: Sequence[RunRecord], name: str) -> list[str]:
    """Return what identifies each run's data: its origin, where a run of that content names one, else its digest."""
    origins = {run.tags[name]: run.tags[name + ORIGIN] for run in runs if run.tags.get(name + ORIGIN)}
    return [origins.get(run.tags[name], run.tags[name])[:12] for run in runs]


def _contents(digests: Sequence[str], paths: Sequence[str]) -> Sequence[str]:
    """Return what tells the data of runs apart: paths, where each has one content and no two the same, else digests."""
    pairs = {*zip(paths, digests, strict=True)}
    return paths if len(pairs) == len({*paths}) == len({*digests}) else digests


def _text_aggregators(runs: Sequence[RunRecord], tuned: Sequence[Tuned | None]) -> list[dict[str, str]]:
    """Return the text aggregator of each run, where labels of tuned ones name the visual one alone and they differ."""
    visual = [run.tags.get("aggregator", "") for run in runs]
    text = [run.tags.get("text_aggregator", "") or own for run, own in zip(runs, visual, strict=True)]
    told = any(
        how and of != own and ", text " not in how.aggregator
        for how, of, own in zip(tuned, text, visual, strict=True)
    )
    return [{"text_aggregator": of} if told else {} for of in text]


def _hidden(name: str) -> bool:
    """Whether a setting has no effect, is shown elsewhere, or is a joint run's own, which its members repeat."""
    start, _, setting = [*name.split("."), "", ""][:3]
    return name in _SHOWN or name in WITHOUT_EFFECT or (start == "members" and setting in OF_THE_JOINT_RUN)


def _defaults() -> dict[str, str]:
    """Return the settings that have a default, as text."""
    data = {field.name: field.default for field in fields(Data) if field.default is not MISSING}
    own = {field.name: field.default for field in fields(Run) if field.default is not MISSING}
    return dict(flattened(own | {"data": data, "optim": asdict(Optim())}))


def _most(values: Sequence[str]) -> str | None:
    """Return the value of more than half of them, or None."""
    value, count = Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else None
