"""Training of a tracked run: started, resumed or repeated, in this process or on Ray Train (see `trains_here`).

Ray restarts failed workers from the last checkpoint.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from polypool.encoders.encoder import recompute
from polypool.infra.compute.device import best_device
from polypool.infra.compute.dist import rank
from polypool.infra.compute.unfilled import Unfilled
from polypool.infra.errors import AwayError, InputError
from polypool.infra.files import causes, disk_fault, make_folder, read_json
from polypool.infra.paths import home, runs
from polypool.infra.process.output import LOG, TEXT, mode
from polypool.infra.process.progress import resumed_bar, say
from polypool.infra.process.stopping import Stopped, graceful_stop, resume_hint
from polypool.infra.ray import (
    Resources,
    on_cluster,
    ray_session,
    report,
    reporter,
    waiting_for_cores,
)
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules, trusted
from polypool.infra.storage import Url, delete, exists, filesystem, place, read_bytes, write_bytes
from polypool.infra.tracking import Log, Sender, Tracker, provenance, resolve_run, tracking_uri
from polypool.pipelines.recipes.load import with_published
from polypool.pipelines.training.checkpoint import (
    ASSETS,
    KEPT,
    ByRay,
    DamagedError,
    InFolder,
    fill_weights,
    last_whole,
    other_than_trained,
    remove_old,
    time_stamp,
    weights_of,
)
from polypool.pipelines.training.loop.optim import make_optimizer
from polypool.pipelines.training.loop.trainer import Trainer
from polypool.pipelines.training.record import (
    AT,
    KILLED_SECONDS,
    LOG_FOLDER,
    Described,
    data_tags,
    finish_soon,
    printed,
    recorded,
    recorded_data,
    recorded_run,
    resume_command,
    run_folder,
    send,
    send_members,
    take_run,
)
from polypool.tasks.abilities import Chunked
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.inputs.other_data import refuse_changed_data
from polypool.tasks.run import Run, modules, refuse_incomplete

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.train.torch import TorchTrainer

CHECKPOINT_SECONDS = 20.0
"""Seconds that SIGTERM waits for a checkpoint; batch systems kill after 30 seconds."""
ORIGIN = "rerun_of"
"""Tag of a repeated run: the id of the original."""
REFUSED = "refused.txt"
"""File next to a run's checkpoints with the message of an error that a restart would repeat."""
_PATIENCE = "86400"  # seconds that workers wait for occupied cores; by default Ray fails after 60
_RESIZE_SECONDS = 10.0  # seconds between checks for resources for more workers


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options of a sweep's trial.

    Attributes:
        stop: a file that, once it exists, ends the training after a checkpoint.
        metric: on `val`, for early stopping of poor trials; empty for none.
    """

    stop: Path
    metric: str = ""


# --- start a new run, resume an interrupted one, repeat a recorded one


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
        more_tags: additional tags.
        trial: see `fit`.
        begun: called with the id before training, once the run can be resumed.
    """
    uri, at, run = tracking_uri(home()), new_runs_at(), with_published(run)
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
    """Resume an interrupted run and return its id; a finished one is not changed.

    Args:
        run_id: the run.
        trust: modules whose code the run may name.
        more_tags: set on the run when it resumes.
        trial: see `fit`.

    Raises:
        HeldError: another process trains it.
        InputError: an unknown run, or one that was not trained; settings that are missing, damaged or name an untrusted
            module; changed data; missing checkpoints.
    """
    trust_modules(*trust)
    tracker = _training(run_id)
    run_id = tracker.run_id
    at = checkpoints_at(run_id, tracker.tag(AT))
    if not run_folder(home(), run_id).is_dir():
        if tracker.status() == "FINISHED":
            return run_id
        _last(tracker, at)  # before the lock creates the folder
    with take_run(tracker):
        send(tracker)
        if tracker.status() == "FINISHED":
            return run_id
        run, last = recorded_run(tracker), _last(tracker, at)
        adapter = TASKS.build(run.task, run)
        anew = f"Restore them, or train on the current ones: `polypool train rerun {run_id}`"
        refuse_changed_data(run, recorded_data(tracker.all_tags()), adapter.describe(), hint=anew)
        tracker = Tracker.attach(tracker.uri, run_id)
        with recorded(tracker):
            if more_tags:
                tracker.tags(more_tags)
            fit(run, tracker, adapter=adapter, at=at, last=last, trial=trial)
    return run_id


def _last(tracker: Tracker, at: Url | None) -> str | None:
    """Return the last valid checkpoint of a run; None if it ended before its first one and starts over.

    Raises:
        InputError: it was trained and its checkpoints are missing or damaged, or the storage does not answer.
    """
    folder = run_folder(home(), tracker.run_id)
    try:
        if (last := last_whole(at or folder)) is not None:
            return last
        metrics = tracker.metrics()
        # an epoch is logged before its checkpoint is written in the background
        if not metrics or ((folder / LOG_FOLDER).is_dir() and metrics.get("epoch", 0) < 2):
            return None
        what = f"no checkpoint in {at or folder}"
    except DamagedError as error:
        what = str(error)
    where = "the folder (or set POLYPOOL_HOME to its place)"
    if at is not None:
        where = "it (or set AWS_ENDPOINT_URL to its server)"
    raise InputError(
        f"run {tracker.run_id} cannot be resumed: {what}. Restore {where}, or train it again: "
        f"`polypool train rerun {tracker.run_id}`"
    )


def new_runs_at() -> Url | None:
    """Return the URL for checkpoints of new runs; None if they are in the runs' folders."""
    return named if isinstance(named := runs(), Url) else None


def checkpoints_at(run_id: str, named: str) -> Url | None:
    """Return the URL of a run's checkpoints from its tag `AT`; None without a tag, as they are in its folder."""
    return cast("Url", place(named)) / run_id if named else None


def read_original(run_id: str, *, trust: Sequence[str] = ()) -> tuple[Run, Tracker, list[str]]:
    """Return a recorded run, its tracker, and lines on the differences of current code, libraries and data.

    Args:
        run_id: the run, as named for `resolve_run`.
        trust: modules whose code it may name.

    Raises:
        InputError: an unknown run, one that was not trained, settings that are missing or of another version, or
            missing data or parts.
    """
    trust_modules(*trust)
    tracker = _training(run_id)
    try:
        run = recorded_run(tracker)
    except InputError as error:
        raise InputError(
            f"run {tracker.run_id} cannot be repeated: its settings, the artifact run.json, were deleted or cannot be "
            f"read ({error}); train its recipe again with the parameters that MLflow shows of it"
        ) from error
    now = {**provenance(home()), **data_tags(prepare(run))}
    then = {name: tracker.tag(name) for name in now}
    lines = [
        f"{name}: then {then[name]}, now {value}"
        for name, value in now.items()
        if name not in ("git_dirty", "mlflow.source.git.commit") and then[name] not in ("", value)
    ]
    if changed := [when for when, of in (("then", then), ("now", now)) if of.get("git_dirty") == "true"]:
        lines.append(f"files that git tracks differ from the commit: {' and '.join(changed)}")
    lines = lines or ["nothing that was recorded differs"]
    if unknown := sorted(name for name, value in then.items() if not value and name != "git_dirty"):
        lines.append(f"not recorded then: {', '.join(unknown)}")
    return run, tracker, lines


def _training(run_id: str) -> Tracker:
    """Return the tracker of a trained run, as named for `resolve_run`, without changing the run's status.

    Raises:
        InputError: an unknown run, or one of another kind.
    """
    uri = tracking_uri(home())
    tracker = Tracker.attach(uri, resolve_run(uri, run_id), running=False)
    if (kind := tracker.tag("kind")) != "train":
        raise InputError(f"run {tracker.run_id} {other_than_trained(kind)}")
    return tracker


def scores(then: Tracker, now: Tracker) -> list[str]:
    """Return a line for each score of the test split: original and repeated."""
    protocol = f"{then.tag('protocol')}/"
    old, new = then.metrics(), now.metrics()
    names = [name for name in sorted(old) if name.startswith(protocol) and name in new]
    return [f"{name:<24} then {printed(old[name]):<9} now {printed(new[name])}" for name in names]


# --- checks of a new run before it starts, without published weights and without Ray


def prepare(run: Run, **arguments: Any) -> TaskAdapter:
    """Return the adapter of a new run after all checks.

    Args:
        run: its complete description, from a trusted source: the modules that it names become trusted.
        arguments: passed on to the adapter, such as known `assets`.

    Raises:
        InputError: an unknown part or protocol, unsuitable data, a setting that the task does not use or the model does
            not support, a prefix in `lr_factors` or `freeze` that matches no parameter, an unknown run `init`, or a
            member of a joint run.
    """
    if run.jointly:
        raise InputError(
            f"this {run.task} was trained together with others, by {run.jointly!r}; train that joint run, "
            f"{run.recipe}, or a recipe of its task alone (`polypool train --list`)"
        )
    refuse_incomplete(run)
    trust_modules(*modules(run))
    adapter: TaskAdapter = TASKS.build(run.task, run, **arguments)
    for name in adapter.unused:
        part, _, inside = name.rpartition(".")
        of = getattr(run, part) if part else run
        default = getattr(type(of), inside)
        if (value := getattr(of, inside)) != default:
            flag = name.replace("_", "-")
            raise InputError(
                f"the task {run.task!r} does not use --{flag} {value!r}; leave it out, which means {default!r}"
            )
    adapter.check_training()
    with Unfilled():
        model = adapter.model(pretrained=False)
        if run.optim.chunk:
            _check_chunks(adapter, model, chunk=run.optim.chunk)
        make_optimizer(model, run.optim)
        if run.optim.recompute:
            recompute(model)
        if run.init:
            _print_init(run, adapter, model)
    return adapter


def _check_chunks(adapter: TaskAdapter, model: nn.Module, *, chunk: int) -> None:
    """Refuse chunks if the task does not support them or they change the gradient; leave the model in training mode."""
    if not isinstance(adapter, Chunked):
        raise InputError(
            f"--optim.chunk {chunk}: {type(adapter).__name__} has no `passes` that cut its batches into chunks (see "
            "polypool.tasks.abilities.Chunked); leave it out"
        )
    model.train()
    names = [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm) and module.training
    ]
    if names:
        raise InputError(
            f"--optim.chunk {chunk}: {', '.join(names)} normalise by statistics of the batch, and would by those of a "
            "chunk; leave it out, or choose parts without batch normalisation, such as --visual grid"
        )


def _print_init(run: Run, adapter: TaskAdapter, model: nn.Module) -> None:
    """Print which weights a new run takes from another one, and which are newly initialised.

    Raises:
        InputError: an unknown run, or no matching weights.
    """
    weights = weights_of(run.init, tracking_uri(home()))
    taken, left = fill_weights(model, weights)
    new = f"; newly initialised: {', '.join(left)}" if left else ""
    print(f"init: {len(taken)} of {len(taken) + len(left)} weights from run {run.init}{new}")
    assets = read_json(weights.with_name(ASSETS), what="the assets of a model")
    if other := [name for name, value in adapter.assets.items() if name in assets and assets[name] != value]:
        which = ", ".join(name.replace("_", " ") for name in other)
        print(
            f"note: that run has other data, words or features ({which}): rows of its embeddings may have another "
            "meaning here"
        )


# --- training in this process, or on Ray


def trains_here(run: Run, *, at: object, in_sweep: bool = False) -> bool:
    """Whether a run trains in the process that starts it, without Ray.

    A single worker needs nothing from Ray Train, whose processes cost as much as a short run; a sweep has separate
    processes.

    Args:
        run: its settings.
        at: the object storage of its checkpoints, if any.
        in_sweep: whether this process belongs to a sweep and reserves the cores and the GPU of one worker.
    """
    return run.worker_counts == (1,) and at is None and (in_sweep or not on_cluster())


def fit(
    run: Run,
    tracker: Tracker,
    *,
    adapter: TaskAdapter,
    at: Url | None = None,
    last: str | None = None,
    trial: TrialOptions | None = None,
) -> None:
    """Train a tracked run, from its last checkpoint if it has one.

    SIGTERM, Ctrl-C, or a file `stop` next to its checkpoints (for a trial, `TrialOptions.stop`) end it after a
    checkpoint.

    Args:
        run: its complete description.
        tracker: of the run.
        adapter: its task.
        at: the URL of its checkpoints; None if they are in its folder.
        last: the path of the checkpoint to start from, if any.
        trial: of the sweep that trains it, if any.

    Raises:
        InputError: the run cannot be trained with this input, or the disk is full.
        RuntimeError: training failed, or Ray workers failed more often than `run.retries` allows. A trial in this
            process raises the original error.
        Stopped: a signal was received, or the file `stop` was created.
    """
    folder = make_folder(run_folder(home(), tracker.run_id))
    kept_at, metric = at or folder, trial.metric if trial else ""
    stop: Path | Url = trial.stop if trial else kept_at / "stop"
    if trial is None:
        delete(stop)
    delete(kept_at / REFUSED)
    journal, resume = partial(Log, folder / LOG_FOLDER), resume_command(tracker.run_id, modules(run))
    here = isinstance(stop, Path) and trains_here(run, at=at, in_sweep=trial is not None)

    def attempt() -> bool:
        """Return whether training finished; errors name the remedy."""
        finished, failure = False, None
        try:
            finished = train_all()
        except InputError:
            raise
        except Exception as error:
            failure = error
        if exists(kept_at / REFUSED):  # a restart would fail again
            raise InputError(read_bytes(kept_at / REFUSED).decode()) from failure
        if failure is None:
            return finished
        for each in (*getattr(failure, "worker_failures", {}).values(), failure):
            if cause := next(_faults(each), None):
                raise InputError(str(cause)) from failure
            if why := at is None and disk_fault(each, folder):
                raise InputError(f"{why}, then `{resume}` resumes from the last checkpoint") from failure
        if here and trial:
            raise failure
        raise RuntimeError(f"training failed; `{resume}` resumes it: {failure}") from failure

    with resume_hint(resume), ExitStack() as session:
        if here:
            session.callback(torch.set_num_threads, torch.get_num_threads())
            set_up(threads=min(run.cpus, torch.get_num_threads()))
            kept = InFolder(folder=folder, stop=stop, journal=journal, start=last)
            if metric:
                kept.reported = partial(report, metric)
            train_all = partial(train, run, adapter, kept, uri=tracker.uri, device=best_device())
        else:
            os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _PATIENCE)
            session.enter_context(ray_session(dashboard=True))
            resources = Resources.plan(run.workers, fewest=run.worker_counts[0], cpus=run.cpus)
            kept = ByRay(at=kept_at, stop=stop, journal=journal, start=last)
            trainer = _trainer(run, tracker, kept, resources, assets=adapter.assets, metric=metric)
            need = f"{run.workers} worker{'s' if run.workers > 1 else ''} of Ray to start"
            say(f"waiting for {need}", what=need)
            session.enter_context(waiting_for_cores(run.worker_counts[0] * resources.cpus))
            train_all = partial(_fit_in_thread, trainer)
        _until_stopped(attempt, stop=stop, tracker=tracker)
    remove_old(kept_at)


def _until_stopped(train: Callable[[], bool], *, stop: Path | Url, tracker: Tracker) -> None:
    """Train until SIGTERM, or the file `stop`, ends it after a checkpoint.

    Args:
        train: returns whether training finished, which it may despite a request during the final test.
        stop: see `fit`.
        tracker: of the run.

    Raises:
        Stopped: a request ended the training; also if its workers were killed then.
    """
    finished, marked = False, []

    def request() -> None:
        os.write(2, b"stopping after a checkpoint; a second signal ends at once\n")
        write_bytes(stop, b"")
        marked.append(finish_soon(tracker, "KILLED"))  # this process may be killed before its end

    try:
        with graceful_stop(request, seconds=CHECKPOINT_SECONDS):
            finished = train()
        if not finished:
            raise Stopped
    except Stopped:
        if not finished:
            raise
        for thread in marked:  # otherwise it could change the status after the end
            thread.join(KILLED_SECONDS)
    except (Exception, SystemExit) as error:
        if exists(stop) or (isinstance(stop, Path) and not stop.parent.is_dir()):
            raise Stopped from error
        raise


def _fit_in_thread(trainer: Any) -> bool:
    """Train on Ray outside the main thread, so that its signal handlers are kept; return the workers' result."""
    if threading.current_thread() is not threading.main_thread():
        return bool(trainer.fit().return_value)
    future: Future[bool] = Future()

    def work() -> None:
        try:
            future.set_result(bool(trainer.fit().return_value))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="Ray Train", daemon=True).start()
    return future.result()


def _trainer(
    run: Run,
    tracker: Tracker,
    kept: ByRay,
    resources: Resources,
    *,
    assets: Mapping[str, Any],
    metric: str,
) -> TorchTrainer:
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    train: Any = ray.train  # it has type hints of an earlier version

    work = partial(
        work_on_ray,
        run=run,
        kept=kept,
        uri=tracker.uri,
        assets=ray.put(json.dumps(assets)),
        home=home(),
        threads=resources.cpus,
        terminal=sys.stderr.isatty(),
        log=mode(),
        trusted=trusted(),
    )
    system, path = filesystem(kept.at)
    return TorchTrainer(
        cast("Any", lambda: work()),
        scaling_config=train.ScalingConfig(
            num_workers=(run.worker_counts[0], run.workers) if len(run.worker_counts) > 1 else run.workers,
            elastic_resize_monitor_interval_s=_RESIZE_SECONDS,
            use_gpu=resources.gpu,
            resources_per_worker={"CPU": resources.cpus},
        ),
        run_config=train.RunConfig(
            name=f"ray-{time_stamp()}",
            storage_path=path,
            storage_filesystem=system,
            failure_config=train.FailureConfig(max_failures=run.retries),
            checkpoint_config=train.CheckpointConfig(num_to_keep=KEPT),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=[reporter(metric)] if metric else [],
        ),
    )


# --- a worker: the setup of a Ray process, and training, the same in every process


def work_on_ray(
    *,
    run: Run,
    kept: ByRay,
    uri: str,
    assets: ObjectRef,
    home: Path,
    threads: int,
    terminal: bool,
    log: str,
    trusted: tuple[str, ...],
) -> bool:
    """Set up a Ray process and train in it; return the result of `train`.

    If a restart would repeat an error, its message is written to the file `REFUSED`: restarted workers then return, and
    the driver raises it.

    Args:
        run, kept, uri: see `train`.
        assets: of the adapter, as JSON in Ray's object store, because a vocabulary may be large.
        home: the project's folder of data and runs.
        threads: of torch.
        terminal: whether the driver's output is a terminal, where a progress bar can be redrawn.
        log: format of progress, see `polypool.infra.process.output.mode`.
        trusted: modules whose code specs may name.
    """
    if exists(kept.at / REFUSED):
        return False
    os.environ |= {"POLYPOOL_HOME": str(home), LOG: log}
    trust_modules(*trusted)
    import ray
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    set_up(threads=threads)
    tracked = partial(Tracker.attach, uri, kept.at.name, running=False)
    own_log = home / "runs" / kept.at.name / "worker"
    if remote := isinstance(kept.at, Url):  # this machine may share no folder with the driver's
        kept = replace(kept, journal=lambda: Sender(make_folder(own_log), tracked, remote=True))
    try:
        finished = train(
            run,
            TASKS.build(run.task, run, assets=json.loads(ray.get(assets))),
            kept,
            uri=uri,
            device=get_device(),
            bar=drawn_by_the_driver if terminal and log == TEXT else resumed_bar,
        )
    except Exception as error:
        if why := next(_faults(error), None) or disk_fault(error, home):
            with suppress(InputError, OSError):  # the disk may be full
                write_bytes(kept.at / REFUSED, str(why).encode())
        raise
    if remote and rank() == 0 and (why := send_members(own_log, tracked())):
        print(f"note: runs of the tasks of {kept.at.name} are not all in MLflow ({why})", file=sys.stderr)
    return finished


def _faults(error: BaseException) -> Iterator[InputError]:
    """Yield the errors that a restart would repeat: of users' input, but not of a service that does not answer."""
    return (of for of in causes(error) if isinstance(of, InputError) and not isinstance(of, AwayError))


def set_up(*, threads: int) -> None:
    """Set up this process for training, with a number of torch threads.

    glibc would return large blocks freed by a step to the system, and every 4 kB of the next allocation would cost a
    page fault, about 4 % of a step on a CPU. Here it retains up to 1 GB; blocks of 256 MB and more are still returned.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # float32 evaluation, as on `best_device`
    with suppress(AttributeError, OSError, TypeError):  # another C library, without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 28)  # M_MMAP_THRESHOLD
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def train(
    run: Run,
    adapter: TaskAdapter,
    kept: InFolder | ByRay,
    *,
    uri: str,
    device: torch.device,
    bar: Callable[..., Any] = resumed_bar,
) -> bool:
    """Train a run to its end, from its last checkpoint if it has one; return False if it was stopped.

    Args:
        run: to train.
        adapter: its task.
        kept: destination of log and checkpoints.
        uri: of the tracking store, which has the run of `run.init`.
        device: of the model.
        bar: creates the progress bar.
    """
    with closing(kept.journal()) if rank() == 0 else nullcontext() as log:
        trainer = Trainer(
            run, adapter, log=log, report=kept.report, device=device, bar=bar, stopping=kept.stopping
        )
        with kept.last() as folder:
            if folder is not None:
                trainer.resume(folder)
            elif run.init:
                fill_weights(trainer.model, weights_of(run.init, uri))
        finished = trainer.train()
        kept.close()
    return finished
