"""Start a run, or go on with one: tracked from the first moment, trained on Ray workers."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from infra.checkpoint import fill_weights
from infra.compute.unfilled import Unfilled
from infra.errors import InputError
from infra.files import make_folder, read_json
from infra.paths import home
from infra.process.stopping import at_once_too, to_go_on
from infra.ray.session import ray_beside, ray_session
from infra.registry import TASKS
from infra.storage.faults import disk_fault
from infra.tracking import Outbox, Tracker, tracking_uri
from infra.tracking.journal import JOURNAL
from infra.tracking.outbox import CLOSE_SECONDS, REFUSED
from infra.tracking.system_metrics import system_metrics
from infra.tracking.tracker import Status, ending
from infra.trust import trust_modules
from pipelines.training.best_checkpoint import ASSETS, other_than_trained, weights_of
from pipelines.training.chunks import check_chunks
from pipelines.training.driver import resume_command
from pipelines.training.folder import (
    AT,
    OUTBOX,
    RunLease,
    checkpoints_at,
    new_runs_at,
    refuse_lost,
    refuse_lost_at,
    remove_orphans,
    run_folder,
    take_run,
    take_up,
)
from pipelines.training.optim import make_optimizer
from pipelines.training.ray_train import finish_soon, fit
from pipelines.training.recording.described import Described
from pipelines.training.recording.members import send_members
from tasks.base import TaskAdapter
from tasks.run import Run, from_json, modules

if TYPE_CHECKING:
    from infra.storage.claim import Claim

KILLED_SECONDS = 2.0
"""How long a run that was stopped waits for MLflow."""


def prepare(run: Run, **arguments: Any) -> TaskAdapter:
    """Return the adapter of a new run, of which everything has been tried that needs neither weights nor Ray.

    Args:
        run: its complete description, made by a program or read back; either way, somebody trusts what it names.
        arguments: passed on to the adapter, such as `assets` that are known already.

    Raises:
        InputError: a part or a protocol that there is not, data that does not fit, a setting that the task does not
            use, a prefix of `lr_factors` or `freeze` that no parameter has.
    """
    if run.jointly:
        raise InputError(
            f"this {run.task} was trained together with others, by {run.jointly!r}; train that joint run, "
            f"{run.recipe}, or a recipe of its task by itself (`python -m pipelines.train --list`)"
        )
    trust_modules(*modules(run))
    adapter: TaskAdapter = TASKS.build(run.task, run, **arguments)
    refuse_unused(run, adapter.unused)
    adapter.check_training()
    with Unfilled():
        model = adapter.model(pretrained=False)
        check_chunks(adapter, model, chunk=run.optim.chunk)
        make_optimizer(model, run.optim)
        if run.init:
            _say_init(run, adapter, model)
    return adapter


def _say_init(run: Run, adapter: TaskAdapter, model: nn.Module) -> None:
    """Say which weights a new run has from another one, and which begin anew.

    Raises:
        InputError: there is no such run, or nothing of it fits.
    """
    weights = weights_of(run.init, tracking_uri(home()))
    taken, left = fill_weights(model, weights)
    anew = f"; anew begin {', '.join(left)}" if left else ""
    print(f"init: {len(taken)} of {len(taken) + len(left)} weights are those of run {run.init}{anew}")
    assets = read_json(weights.with_name(ASSETS), what="the assets of a model")
    if other := [name for name, value in adapter.assets.items() if name in assets and assets[name] != value]:
        which = ", ".join(name.replace("_", " ") for name in other)
        print(
            f"note: that run was made from other data, words or features ({which}), so that rows of its embeddings may "
            "stand for others here"
        )


def refuse_unused(run: Run, names: Sequence[str]) -> None:
    """Refuse a run that changes what its task does not use.

    Args:
        run: the run.
        names: of settings, such as `data.sample`.

    Raises:
        InputError: one of them has another value than its default.
    """
    for name in names:
        part, _, inside = name.rpartition(".")
        of = getattr(run, part) if part else run
        (default,) = (field.default for field in dataclasses.fields(of) if field.name == inside)
        if (value := getattr(of, inside)) != default:
            flag = name.replace("_", "-")
            raise InputError(
                f"the task {run.task!r} does not use --{flag} {value!r}; leave it out, which means {default!r}"
            )


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
        stop: as of `fit`; where None, a file of the run's own.
        callbacks: those of `fit`.
        begun: called with its id when the run can be resumed, before it trains.
    """
    uri, at = tracking_uri(home()), new_runs_at()
    adapter = prepare(run)
    with ray_beside():
        described = Described.of(run, adapter.sources())
        where = {AT: str(at)} if at else {}
        tracker = described.start(uri, home(), more_tags={**(more_tags or {}), **where})
        lease = take_run(home(), tracker.run_id, at / tracker.run_id if at else None)
        with lease, recorded(tracker, lease, new=True):
            tracker.json("run.json", described.settings)
            tracker.tags({f"data.{name}": value for name, value in adapter.describe().items()})
            if begun:
                begun(tracker.run_id)
            return launch(
                run, tracker, claim=lease.there, assets=adapter.assets, stop=stop, callbacks=callbacks
            )


def resume(
    run_id: str,
    *,
    trust: Sequence[str] = (),
    more_tags: Mapping[str, str] | None = None,
    stop: Path | None = None,
    callbacks: Sequence[Any] = (),
) -> str:
    """Go on with an interrupted run and return its id; a finished one is left as it is.

    Args:
        run_id: the run.
        trust: modules whose code the run may name.
        more_tags: set on the run where it goes on.
        stop: as of `fit`; where None, a file of the run's own.
        callbacks: those of `fit`.

    Raises:
        HeldError: another process trains it.
        InputError: no such run, or one that was not trained; its settings are gone or damaged, or they name a module
            that is not trusted; its checkpoints are gone.
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
            refuse_lost(tracker, folder)  # before the folder is made
    with take_run(home(), run_id, at) as lease:
        send(tracker)
        if tracker.status() == "FINISHED":
            return run_id
        run = from_json(tracker.read_json("run.json"), where=f"run.json of run {run_id}")
        if lease.there is None:
            take_up(folder)
            refuse_lost(tracker, folder)
        else:
            refuse_lost_at(tracker, lease.there)
        tracker = Tracker.attach(uri, run_id)
        with recorded(tracker, lease):
            if more_tags:
                tracker.tags(more_tags)
            return launch(run, tracker, claim=lease.there, stop=stop, callbacks=callbacks)


@contextmanager
def recorded(tracker: Tracker, lease: RunLease, *, new: bool = False) -> Iterator[None]:
    """Send what the workers log, and end the run with what is inside.

    What MLflow does not take now waits in the run's folder, and nothing fails of it.

    Args:
        tracker: of the run.
        lease: on it; where another machine has the run by now, it is not ended here.
        new: whether it has logged nothing yet.
    """
    outbox = Outbox(run_folder(home(), tracker.run_id) / OUTBOX, lambda: tracker)
    if new:
        outbox.begin()
    killed = at_once_too(lambda: finish_soon(tracker, "KILLED").join(1))
    ended = ending(lambda how: _close(outbox, tracker, None if lease.lost else how))
    with killed, ended, system_metrics(lambda x, step: outbox.log(x, step=step), since=tracker.started):
        try:
            yield
        except OSError as error:
            if why := disk_fault(error, outbox.folder.parent):
                raise InputError(f"{why}, and go on with `{resume_command(tracker.run_id)}`") from error
            raise


def send(tracker: Tracker, status: Status | None = None) -> None:
    """Send what a run has logged and MLflow has not got, and say what is left.

    Args:
        tracker: of the run.
        status: how it ended now, if it did.
    """
    folder = run_folder(home(), tracker.run_id) / OUTBOX
    if status is not None or folder.is_dir():
        _close(Outbox(folder, lambda: tracker), tracker, status)


def _close(outbox: Outbox, tracker: Tracker, status: Status | None) -> None:
    kept = status is None
    if status is not None:
        with suppress(OSError):  # the disk is full; the run ends all the same
            outbox.end(status)
            kept = True
    outbox.close(KILLED_SECONDS if status == "KILLED" else CLOSE_SECONDS)
    if not kept:
        tracker.finish(status)
    again = f"`{resume_command(tracker.run_id)}`"
    if outbox.unsent:
        kept = f"{outbox.unsent:,} entries of run {tracker.run_id} are not in MLflow yet ({outbox.why or 'no answer'})"
        print(f"note: {kept}: {outbox.folder / JOURNAL} keeps them, and {again} sends them", file=sys.stderr)
    elif (status or tracker.status()) == "FINISHED" and not outbox.refused:
        if why := send_members(outbox.folder, tracker):
            what = f"runs of the tasks of {tracker.run_id} are not all in MLflow ({why})"
            print(f"note: {what}: {outbox.folder} keeps them, and {again} sends them", file=sys.stderr)
        else:
            shutil.rmtree(outbox.folder)
    if outbox.refused:
        print(
            f"note: MLflow refused {outbox.refused:,} entries: {outbox.folder / REFUSED} has them and why",
            file=sys.stderr,
        )


def launch(
    run: Run,
    tracker: Tracker,
    *,
    claim: Claim | None = None,
    assets: dict[str, Any] | None = None,
    stop: Path | None = None,
    callbacks: Sequence[Any] = (),
) -> str:
    """Train on Ray workers under a tracked run; see `fit`."""
    if stop is None:
        stop = make_folder(run_folder(home(), tracker.run_id)) / "stop"
        stop.unlink(missing_ok=True)
    folder = claim.folder if claim else run_folder(home(), tracker.run_id)
    remove_orphans(folder)
    with to_go_on(resume_command(tracker.run_id, modules(run))), ray_session() as session:
        fit(
            run,
            tracker=tracker,
            home=home(),
            session=session,
            claim=claim,
            assets=assets,
            stop=stop,
            callbacks=callbacks,
        )
    remove_orphans(folder)
    return tracker.run_id
