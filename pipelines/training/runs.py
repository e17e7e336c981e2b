"""A tracked run: started, or resumed from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.ray.session import ray_beside
from polypool.infra.spec import trust_modules
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.training.checkpoints import in_folder, in_storage
from polypool.pipelines.training.checkpoints.best import other_than_trained
from polypool.pipelines.training.checkpoints.format import FILES
from polypool.pipelines.training.folder import (
    AT,
    OUTBOX,
    RunLease,
    checkpoints_at,
    new_runs_at,
    run_folder,
    take_run,
)
from polypool.pipelines.training.on_ray import fit
from polypool.pipelines.training.prepare import prepare
from polypool.pipelines.training.recording.described import Described
from polypool.pipelines.training.recording.sending import recorded, send
from polypool.tasks.run import Run, from_json


def start(
    run: Run,
    *,
    more_tags: Mapping[str, str] | None = None,
    stop: Path | None = None,
    callbacks: Sequence[Any] = (),
    begun: Callable[[str], object] | None = None,
) -> str:
    """Train a new run and return its id.

    Args:
        run: its complete description.
        more_tags: beside the usual ones.
        stop: as of `fit`.
        callbacks: as of `fit`.
        begun: called with the id once the run can be resumed, before it trains.
    """
    uri, at = tracking_uri(home()), new_runs_at()
    adapter = prepare(run)
    with ray_beside():
        described = Described.of(run, adapter.sources())
        where = {AT: str(at)} if at else {}
        tracker = described.start(uri, home(), more_tags={**(more_tags or {}), **where})
        with take_run(tracker) as lease, recorded(tracker, lease, new=True):
            tracker.json("run.json", described.settings)
            tracker.tags({f"data.{name}": value for name, value in adapter.describe().items()})
            if begun:
                begun(tracker.run_id)
            fit(run, tracker, lease=lease, assets=adapter.assets, stop=stop, callbacks=callbacks)
    return tracker.run_id


def resume(
    run_id: str,
    *,
    trust: Sequence[str] = (),
    more_tags: Mapping[str, str] | None = None,
    stop: Path | None = None,
    callbacks: Sequence[Any] = (),
) -> str:
    """Resume an interrupted run and return its id; a finished one is left as it is.

    Args:
        run_id: the run.
        trust: modules whose code the run may name.
        more_tags: set on the run once it resumes.
        stop: as of `fit`.
        callbacks: as of `fit`.

    Raises:
        HeldError: another process trains it.
        InputError: no such run, or one that was not trained; its settings are missing, damaged or name a module that
            is not trusted; its checkpoints are gone.
    """
    trust_modules(*trust)
    uri = tracking_uri(home())
    tracker, folder = Tracker.attach(uri, run_id, running=False), run_folder(home(), run_id)
    if (kind := tracker.tag("kind")) != "train":
        raise InputError(f"run {run_id} {other_than_trained(kind)}")
    at = checkpoints_at(run_id, tracker.tag(AT))
    if not folder.is_dir():
        if tracker.status() == "FINISHED":
            return run_id
        if at is None:
            _refuse_lost(tracker)  # before the lease creates the folder
    with take_run(tracker) as lease:
        send(tracker)
        if tracker.status() == "FINISHED":
            return run_id
        run = from_json(tracker.read_json("run.json"), where=f"run.json of run {run_id}")
        if at is None:
            in_folder.relist(folder)
        _refuse_lost(tracker, lease)
        tracker = Tracker.attach(uri, run_id)
        with recorded(tracker, lease):
            if more_tags:
                tracker.tags(more_tags)
            fit(run, tracker, lease=lease, stop=stop, callbacks=callbacks)
    return run_id


def _refuse_lost(tracker: Tracker, lease: RunLease | None = None) -> None:
    """Refuse a run that has trained, whose last checkpoint is missing or not whole.

    Raises:
        InputError: it cannot be resumed, or the storage does not answer or refuses.
    """
    claim = lease.there if lease else None
    last: object = None
    if claim is None:
        at: object = run_folder(home(), tracker.run_id)
        bring, began = "the folder back (or set POLYPOOL_HOME to where it is)", (at / OUTBOX).is_dir()
        try:
            last = in_folder.last_checkpoint(at)
            missing = [name for name in FILES if last is not None and not (last / name).is_file()]
            what = f"{last} lacks {', '.join(missing)}"
        except InputError as error:
            last, missing, what = at, [*FILES], str(error)
    else:
        at = claim.folder
        bring, began = "it back (or set AWS_ENDPOINT_URL to the server that has it)", claim.found
        name = in_storage.newest(at)
        last = at / name if name else None
        missing = in_storage.lacking(at, name) if name else []
        what = f"{last} lacks {', '.join(missing)}"
    if last is not None and not missing:
        return
    if last is None:
        metrics = tracker.metrics()
        if not metrics or (began and "epoch" not in metrics):
            return  # it ended before its first checkpoint, and starts again
        what = f"there is no checkpoint in {at}"
    if claim is not None:
        claim.withdraw()  # a lease that stays would look like a start before the first checkpoint
    raise InputError(
        f"run {tracker.run_id} cannot go on: {what}. Bring {bring}, or train it anew: "
        f"`polypool train rerun {tracker.run_id}`"
    )
