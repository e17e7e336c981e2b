"""`python -m pipelines.rerun RUN_ID`: train a run again from what MLflow holds, and say what differs from then.

The settings are those that were recorded, whatever has become of the recipe. `--dry-run` only says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from infra.errors import InputError, command
from infra.paths import home
from infra.tracking import Tracker, tracking_uri
from infra.tracking.provenance import provenance
from infra.trust import trust_modules
from tasks.run import Run, from_json

ORIGIN = "rerun_of"
"""The tag of a repeated run that names the first one."""


@dataclass(frozen=True, kw_only=True)
class RerunOptions:
    """What to repeat."""

    run_id: tyro.conf.Positional[str]
    """A run that was trained."""
    dry_run: bool = False
    """Say what differs, and train nothing."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run may name, as module:Name; once for each."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run as it was, and what differs today: a line each."""

    run: Run
    tracker: Tracker
    differences: tuple[str, ...]
    unknown: tuple[str, ...]
    """What was not recorded then, so that nobody can say whether it differs."""


def recorded(run_id: str, *, trust: Sequence[str] = ()) -> Recorded:
    """Read a run and compare what it was made of with what is here.

    Args:
        run_id: of the run.
        trust: modules whose code it may name.

    Raises:
        InputError: no such run, it is none that was trained, its settings are gone or those of another version, or its
            data or a part is not at hand.
    """
    from pipelines.training.best_checkpoint import other_than_trained
    from pipelines.training.runs import prepare

    trust_modules(*trust)
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    if (kind := tracker.tag("kind")) not in ("train", ""):
        raise InputError(f"run {run_id} {other_than_trained(kind)}")
    run = _settings(tracker)
    adapter = prepare(run)  # a part that is gone ends a dry run, too
    data = adapter.describe()
    now = {**provenance(home()), **{f"data.{name}": value for name, value in data.items()}}
    then = {name: tracker.tag(name) for name in now}
    return Recorded(
        run=run,
        tracker=tracker,
        differences=tuple(_differing(then, now)),
        unknown=tuple(sorted(name for name, value in then.items() if not value and name != "git_dirty")),
    )


def _settings(tracker: Tracker) -> Run:
    from pipelines.training.best_checkpoint import other_than_trained

    try:
        return from_json(tracker.read_json("run.json"), where=f"run.json of run {tracker.run_id}")
    except InputError as error:
        if not tracker.tag("kind"):
            raise InputError(f"run {tracker.run_id} {other_than_trained('')}") from error
        raise InputError(
            f"run {tracker.run_id} cannot be repeated: its settings, the artifact run.json, were deleted or cannot be "
            f"read ({error}); train its recipe again with the parameters that MLflow shows of it"
        ) from error


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a line for each thing that is not as it was."""
    names = [name for name in now if name not in ("git_dirty", "mlflow.source.git.commit")]
    lines = [
        f"{name}: then {then[name]}, now {now[name]}" for name in names if then[name] not in ("", now[name])
    ]
    changed = [when for when, tags in (("then", then), ("now", now)) if tags.get("git_dirty") == "true"]
    if changed:
        lines.append(f"files that git tracks differ from the commit: {' and '.join(changed)}")
    return lines


def scores(then: Tracker, now: Tracker) -> list[str]:
    """Return a line for each score of the test split: then and now."""
    from pipelines.training.recording.artifacts import printed

    protocol = f"{then.tag('protocol')}/"
    old, new = then.metrics(), now.metrics()
    names = [name for name in sorted(old) if name.startswith(protocol) and name in new]
    return [f"{name:<24} then {printed(old[name]):<9} now {printed(new[name])}" for name in names]


@command
def main() -> None:
    """Say what differs, train, and put the scores side by side."""
    options = tyro.cli(RerunOptions, prog="python -m pipelines.rerun", description=__doc__)
    from pipelines.training.runs import start

    original = recorded(options.run_id, trust=options.trust)
    run = original.run
    print(f"{run.recipe} {run.aggregator} seed {run.seed} (run {options.run_id})")
    for line in original.differences or ("nothing that was recorded differs",):
        print(f"  {line}")
    if not scores(original.tracker, original.tracker):
        print("  it has no scores of the test split: it failed, or was ended before them")
    if original.unknown:
        print(f"  not recorded then: {', '.join(original.unknown)}")
    if options.dry_run:
        return
    run_id = start(run, more_tags={ORIGIN: options.run_id})
    again = Tracker.attach(tracking_uri(home()), run_id, running=False)
    print(f"run {run_id} finished")
    for line in scores(original.tracker, again):
        print(f"  {line}")


if __name__ == "__main__":
    main()
