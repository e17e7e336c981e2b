"""A tracked run: started, resumed from its last checkpoint, or repeated from its record in MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules
from polypool.infra.storage import Url
from polypool.infra.tracking import Tracker, provenance, resolve_run, tracking_uri
from polypool.pipelines.training.checkpoints.best import other_than_trained
from polypool.pipelines.training.checkpoints.kept import DamagedError, last_whole
from polypool.pipelines.training.fitting import TrialOptions, fit
from polypool.pipelines.training.prepare import prepare
from polypool.pipelines.training.record import (
    Described,
    data_tags,
    printed,
    recorded,
    recorded_data,
    recorded_run,
    send,
)
from polypool.pipelines.training.run_folder import (
    AT,
    OUTBOX,
    checkpoints_at,
    new_runs_at,
    run_folder,
    take_run,
)
from polypool.tasks.inputs.other_data import refuse_changed_data
from polypool.tasks.run import Run


def start(
    run: Run,
    *,
    more_tags: Mapping[str, str] | None = None,
    trial: TrialOptions | None = None,
    begun: Callable[[str], object] | None = None,
) -> str:
    """Train a new run and return its id.

    Args:
        run: its complete description.
        more_tags: beside the usual ones.
        trial: as of `fit`.
        begun: called with the id once the run can be resumed, before it trains.
    """
    uri, at = tracking_uri(home()), new_runs_at()
    adapter = prepare(run)
    described = Described.of(run, adapter.sources())
    where = {AT: str(at)} if at else {}
    tracker = described.start(uri, home(), more_tags={**(more_tags or {}), **where})
    with take_run(tracker), recorded(tracker):
        tracker.json("run.json", described.settings)
        tracker.tags(data_tags(adapter))
        if begun:
            begun(tracker.run_id)
        fit(run, tracker, adapter=adapter, at=at / tracker.run_id if at else None, trial=trial)
    return tracker.run_id


def resume(
    run_id: str,
    *,
    trust: Sequence[str] = (),
    more_tags: Mapping[str, str] | None = None,
    trial: TrialOptions | None = None,
) -> str:
    """Resume an interrupted run and return its id; a finished one is left as it is.

    Args:
        run_id: the run.
        trust: modules whose code the run may name.
        more_tags: set on the run once it resumes.
        trial: as of `fit`.

    Raises:
        HeldError: another process trains it.
        InputError: no such run, or one that was not trained; its settings are missing, damaged or name a module that
            is not trusted; its checkpoints are gone.
    """
    trust_modules(*trust)
    uri = tracking_uri(home())
    run_id = resolve_run(uri, run_id)
    tracker, folder = Tracker.attach(uri, run_id, running=False), run_folder(home(), run_id)
    if (kind := tracker.tag("kind")) != "train":
        raise InputError(f"run {run_id} {other_than_trained(kind)}")
    at = checkpoints_at(run_id, tracker.tag(AT))
    if not folder.is_dir():
        if tracker.status() == "FINISHED":
            return run_id
        _last(tracker, at)  # before the lock creates the folder
    with take_run(tracker):
        send(tracker)
        if tracker.status() == "FINISHED":
            return run_id
        run, last = recorded_run(tracker), _last(tracker, at)
        adapter = TASKS.build(run.task, run)
        anew = f"Bring those back, or train on these anew: `polypool train rerun {run_id}`"
        refuse_changed_data(run, recorded_data(tracker.all_tags()), adapter.describe(), hint=anew)
        tracker = Tracker.attach(uri, run_id)
        with recorded(tracker):
            if more_tags:
                tracker.tags(more_tags)
            fit(run, tracker, adapter=adapter, at=at, last=last, trial=trial)
    return run_id


def _last(tracker: Tracker, at: Url | None) -> Path | str | None:
    """Return the last whole checkpoint of a run; None where it ended before its first one, and starts again.

    Raises:
        InputError: it has trained and its checkpoints are missing or damaged, or the storage does not answer.
    """
    folder = run_folder(home(), tracker.run_id)
    bring = "the folder back (or set POLYPOOL_HOME to where it is)"
    if at is not None:
        bring = "it back (or set AWS_ENDPOINT_URL to the server that has it)"
    try:
        if (last := last_whole(at or folder)) is not None:
            return last
        metrics = tracker.metrics()
        if not metrics or ((folder / OUTBOX).is_dir() and "epoch" not in metrics):
            return None
        what = f"there is no checkpoint in {at or folder}"
    except DamagedError as error:
        what = str(error)
    raise InputError(
        f"run {tracker.run_id} cannot go on: {what}. Bring {bring}, or train it anew: "
        f"`polypool train rerun {tracker.run_id}`"
    )


ORIGIN = "rerun_of"
"""The tag of a repeated run that names the original."""


@dataclass(frozen=True, kw_only=True)
class Original:
    """A run as it was recorded, and how today's code, libraries and data differ.

    Attributes:
        run: its settings.
        tracker: of the run.
        differences: a line each.
        unknown: what was not recorded then.
    """

    run: Run
    tracker: Tracker
    differences: tuple[str, ...]
    unknown: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report that precedes the training."""
        lines = [*(self.differences or ("nothing that was recorded differs",))]
        if not scores(self.tracker, self.tracker):
            lines.append("it has no scores of the test split: it failed, or was ended before them")
        if self.unknown:
            lines.append(f"not recorded then: {', '.join(self.unknown)}")
        return lines


def read_original(run_id: str, *, trust: Sequence[str] = ()) -> Original:
    """Read a recorded run and compare it with the code and data at hand.

    Args:
        run_id: of the run.
        trust: modules whose code it may name.

    Raises:
        InputError: no such run, it was not trained, its settings are missing or those of another version, or its data
            or a part is not at hand.
    """
    trust_modules(*trust)
    uri = tracking_uri(home())
    run_id = resolve_run(uri, run_id)
    tracker = Tracker.attach(uri, run_id, running=False)
    if (kind := tracker.tag("kind")) not in ("train", ""):
        raise InputError(f"run {run_id} {other_than_trained(kind)}")
    try:
        run = recorded_run(tracker)
    except InputError as error:
        if not kind:
            raise InputError(f"run {run_id} {other_than_trained('')}") from error
        raise InputError(
            f"run {run_id} cannot be repeated: its settings, the artifact run.json, were deleted or cannot be "
            f"read ({error}); train its recipe again with the parameters that MLflow shows of it"
        ) from error
    data = data_tags(prepare(run))
    now = {**provenance(home()), **data}
    then = {name: tracker.tag(name) for name in now}
    return Original(
        run=run,
        tracker=tracker,
        differences=tuple(_differing(then, now)),
        unknown=tuple(sorted(name for name, value in then.items() if not value and name != "git_dirty")),
    )


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
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
    protocol = f"{then.tag('protocol')}/"
    old, new = then.metrics(), now.metrics()
    names = [name for name in sorted(old) if name.startswith(protocol) and name in new]
    return [f"{name:<24} then {printed(old[name]):<9} now {printed(new[name])}" for name in names]
