"""The record of a run: its folder and lock on this machine, and its description, log, results and tuning in MLflow.

The folder holds the log and the checkpoints. If POLYPOOL_RUNS is a URL of object storage, Ray Train stores the
checkpoints there, and machines without a shared folder can resume the run.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import math
import os
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.fields import from_plain, read_record
from polypool.infra.files import disk_fault
from polypool.infra.locks import NAME, Lock, holder_of
from polypool.infra.paths import home, keep_out_of_jobs, runs
from polypool.infra.process.stopping import cleanup_on_exit
from polypool.infra.spec import trust_flags
from polypool.infra.tracking import (
    CLOSE_SECONDS,
    COMMAND,
    DESCRIBED,
    HOME,
    JOINT,
    MEMBERS,
    NOTE,
    PARENT,
    Log,
    RunRecord,
    Sender,
    Source,
    Status,
    Tracker,
    command_line,
    ending,
    find_runs,
    system_metrics,
)
from polypool.tasks.adapter import Evaluation, Pictures, TaskAdapter
from polypool.tasks.run import Run, from_json, located, modules, portable, to_params, to_record
from polypool.tasks.scoring.records import (
    FOLDER,
    QUERIES,
    VERSION_TAG,
    file_name,
    metrics_json,
    metrics_tag,
    queries_json,
)

if TYPE_CHECKING:
    from torch import nn

    from polypool.aggregators.observe import Watched
    from polypool.pipelines.training.checkpoint import Progress

LOG_FOLDER = "log"
"""File name of a run's log in its folder, until MLflow has all entries."""
AT = "checkpoints_at"
"""Tag of a run with checkpoints in object storage: the URL of its folder's parent."""
Process = Literal["", "alive", "dead", "unknown"]
"""Process state of a run: alive, dead, unknown (its folder is on another machine) or empty (ended)."""


def run_folder(home: Path, run_id: str) -> Path:
    """Return the folder of a run on this machine."""
    named = runs()
    return (named if isinstance(named, Path) else home / "runs") / run_id


def resume_command(run_id: str, trust: Iterable[str] = ()) -> str:
    """Return the command that resumes a run, with flags for trusted modules."""
    return " ".join(["polypool train resume", run_id, *trust_flags(trust)])


def take_run(tracker: Tracker, *, seconds: float = 0.0) -> Lock:
    """Lock a run, waiting at most `seconds` for the lock, and create its folder.

    Raises:
        HeldError: another process trains the run.
        InputError: the folder cannot be written.
    """
    of = f"run {tracker.run_id} is being trained by another process"
    return Lock(run_folder(home(), tracker.run_id) / NAME, of=of, seconds=seconds)


@contextmanager
def locked_run(tracker: Tracker) -> Iterator[None]:
    """Lock a run without training, such as a sweep, and end the run with the block.

    The lock shows `polypool runs` whether its process is alive.

    Raises:
        HeldError: another process holds the run.
        InputError: its folder cannot be written.
    """
    with take_run(tracker), ending(tracker.finish):
        yield
    with suppress(OSError):  # the folder has a user's file
        run_folder(home(), tracker.run_id).rmdir()


def process_of(record: RunRecord, *, home: Path) -> tuple[Process, str]:
    """Return the state of the process that trains a run, and the process, if known."""
    folder = run_folder(home, record.run_id)
    if holder := holder_of(folder / NAME):
        return "alive", holder
    if record.status != "RUNNING":
        return "", ""
    return ("dead" if folder.is_dir() else "unknown"), ""


COLLAPSED = "collapsed"
"""Tag of a collapsed run, with step and symptoms."""
SCORED = "scored"
"""Tag of a run with all scores logged: the protocol of its test split; figures may be missing."""
PRECISION = "precision"
"""Tag with the precision of the losses, `float32` or `bfloat16`."""


TUNED = "tuned"
"""Tag of a run with settings from a tuned sweep."""
FACTOR = "aggregator.lr"
"""Setting for the learning rate factor of the aggregators' weights, in `optim.lr_factors`."""

Listed = tuple[tuple[str, tuple[str, ...]], ...]
"""Values by setting, as text."""


def listed(values: Listed) -> str:
    """Return lists of values as text, such as `optim.lr=0.001,0.002; aggregator.lr=0.3,1.0`."""
    return "; ".join(f"{name}={','.join(of)}" for name, of in values)


def text_of(chosen: Iterable[tuple[str, str]]) -> str:
    """Return chosen settings as text, such as `optim.lr=0.001, kmax.k=2`."""
    return ", ".join(f"{name}={value}" for name, value in chosen)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Record of how settings were tuned.

    Attributes:
        aggregator: its spec without the tuned options, and the text's.
        budget: trials per aggregator.
        trial_seeds: seeds of each trial, over which its score is averaged.
        space: candidate values by setting, for all aggregators.
        own: candidate values by option of this aggregator.
        early_stop: whether the worse half of an aggregator's trials was stopped early.
        chosen: by setting and option, the best value on `val`.
        sweep: run id of the sweep.
        seed: of the sample of each search space; None if the sample was not stratified.
    """

    aggregator: str
    budget: int
    space: Listed
    own: Listed
    early_stop: bool
    chosen: tuple[tuple[str, str], ...]
    sweep: str
    seed: int | None = None
    trial_seeds: int = 1

    @property
    def named(self) -> str:
        """The aggregator with the candidate values of its options."""
        return self.aggregator + (f" ({listed(self.own)})" if self.own else "")

    @property
    def words(self) -> str:
        """The tuning as text for a table's title, equal for all aggregators of a sweep."""
        stopped = ", the worse half stopped early" if self.early_stop else ""
        over = f" over {listed(self.space)}" if self.space else ""
        drawn = f", sample {self.seed}" if self.seed is not None else ""
        seeds = f" of {self.trial_seeds} seeds" if self.trial_seeds > 1 else ""
        return f"tuned by {self.budget} trial{'s' * (self.budget > 1)}{seeds} each{over}{drawn}{stopped}"

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings changed by tuning, besides the aggregators."""
        return tuple("optim.lr_factors" if name == FACTOR else name for name, _ in self.space)

    def points(self, *, weights: bool) -> int:
        """Return the number of points of the space; an aggregator without weights has no learning rate of its own."""
        values = [values for name, values in (*self.space, *self.own) if weights or name != FACTOR]
        return math.prod(map(len, values))

    def tag(self) -> dict[str, str]:
        return {TUNED: json.dumps(dataclasses.asdict(self))}


def inherited(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that other runs inherit with this run's weights or settings; tables separate runs by them."""
    return {TUNED: tags[TUNED]} if tags.get(TUNED) else {}


def tuned_of(tags: Mapping[str, str], *, run: str) -> Tuned | None:
    """Return how a run was tuned; None if it was not.

    Args:
        tags: of the run.
        run: its id, for messages.

    Raises:
        InputError: the tag is damaged, or of another version.
    """
    if not (text := tags.get(TUNED)):
        return None
    where = f"tag {TUNED!r} of run {run}"
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError(f"{where}: {text[:80]!r} is no JSON; delete the run, or correct it") from None
    return from_plain(Tuned, values, where=where)


@dataclass(frozen=True, kw_only=True)
class Described:
    """Description of a new run before its first log entry, as plain data.

    Attributes:
        experiment: its name.
        name: of the run in MLflow.
        tags: for searching.
        params: its settings, nested.
        settings: the run in the form of `polypool.tasks.run.from_json`.
        words: a description in a sentence or two.
        sources: the data that it reads.
    """

    experiment: str
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    settings: Mapping[str, Any]
    words: str = ""
    sources: tuple[Source, ...] = ()

    @classmethod
    def of(cls, run: Run, sources: Sequence[Source] = ()) -> Described:
        """Describe a run with its data."""
        return cls(
            experiment=run.experiment,
            name=name_of(run),
            tags=tags(run),
            params=to_params(run),
            settings=to_record(run),
            words=words(run),
            sources=tuple(sources),
        )

    def start(self, uri: str, home: Path, *, more_tags: Mapping[str, str] | None = None) -> Tracker:
        """Create the run in MLflow; see `Tracker.start`."""
        keep_out_of_jobs(home / "runs")
        tags = {COMMAND: command_line(), **self.tags, **(more_tags or {})}
        by = f"\n\n    {tags[COMMAND]}" if tags[COMMAND] else ""
        tracker = Tracker.start(
            self.experiment,
            uri=uri,
            home=home,
            name=self.name,
            tags={NOTE: self.words + by, **tags},
            params=self.params,
        )
        tracker.inputs(self.sources)
        return tracker


def recorded_run(tracker: Tracker) -> Run:
    """Return the settings of a recorded run with its paths on this machine, see `at_home`.

    Raises:
        InputError: they are missing, or `from_json` rejects them.
    """
    run = from_json(tracker.read_json("run.json"), where=f"run.json of run {tracker.run_id}")
    return at_home(run, tracker.tag(HOME))


def at_home(run: Run, recorded: str) -> Run:
    """Return a run with absolute paths; paths below the recording machine's home are moved to this machine's.

    If the recorded home exists on this machine, the run is not changed.

    Args:
        run: its settings.
        recorded: the home of the machine that started it; empty for an exported model, whose paths are relative.
    """
    return located(portable(run, recorded), home) if not os.path.isdir(recorded) else run


_DATA = "data."


def data_tags(adapter: TaskAdapter) -> dict[str, str]:
    """Return an adapter's description of its data as tags."""
    return {_DATA + name: value for name, value in adapter.describe().items()}


def recorded_data(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the description of data from tags, the inverse of `data_tags`."""
    return {name.removeprefix(_DATA): value for name, value in tags.items() if name.startswith(_DATA)}


def tags(run: Run) -> dict[str, str]:
    """Return the tags by which runs are found and compared."""
    return {
        "kind": "train",
        "task": run.task_name,
        "dataset": run.data.dataset,
        "features": run.features,
        "recipe": run.recipe,
        "aggregator": run.aggregator,
        "text_aggregator": run.text_aggregator or run.aggregator,
        "model": run.model.partition("(")[0],
        "seed": str(run.seed),
        "protocol": run.protocol,
        **({"trust": ",".join(named)} if (named := modules(run)) else {}),
    }


def name_of(run: Run) -> str:
    """Return the name of a run in MLflow: its `name`, or a name such as `gpo · image_text · mine · cells · seed 0`."""
    if run.name:
        return f"{run.name} · {run.task_name}" if run.jointly else run.name
    text = f", text {run.text_aggregator}" if run.text_aggregator not in ("", run.aggregator) else ""
    data = () if run.members or run.recipe.startswith(run.data.dataset) else (run.data.dataset,)
    what = (run.task_name, run.recipe, *data, *(() if run.members else (run.features,)))
    return " · ".join((run.aggregator + text, *dict.fromkeys(filter(None, what)), f"seed {run.seed}"))


def words(run: Run) -> str:
    """Return a description of a run in Markdown; MLflow's table shows its beginning, the run's page all of it."""
    data, optim, text = run.data, run.optim, run.text_aggregator or run.aggregator
    if run.members:
        each = [f"{name} on {of.data.dataset} ({of.data.corpus})" for name, of in run.members.items()]
        read = f"Several tasks in one model, {run.task}: {'; '.join(each)}. Aggregator: {run.aggregator}."
    else:
        sides = [f"visual {run.visual}{data.features and f' ({data.features})'}, {run.aggregator}"]
        sides += [f"text {run.text}{data.texts and f' ({data.texts})'}, {text}"] if run.text else []
        sides += [f"model {run.model}"] if run.model else []
        sides += [f"trained jointly with other tasks, {run.jointly}"] if run.jointly else []
        read = f"{run.task} on {data.dataset}: {'; '.join(sides)}. Corpus: {data.corpus}."
    scored = f"test split {f'scored by {run.protocol}' if run.test else 'not scored'}."
    if not optim.epochs:
        return f"{read} Not trained; {scored}"
    loss = "the tasks' losses" if run.members else " + ".join((run.objective, *run.regularisers))
    start = f", initialised from run {run.init}" if run.init else ""
    return (
        f"{read} Minimises {loss} by {optim.optimiser} in {optim.epochs} epochs of batches of {optim.batch}{start}, "
        f"seed {run.seed}; keeps the {'last epoch' if optim.keep == 'last' else 'best epoch on val'}; {scored}"
    )


KILLED_SECONDS = 2.0
"""Seconds that a stopped run waits for MLflow."""
MEMBER = "member"
"""Tag of a jointly trained task's run, in addition to `JOINT`: the name of the task."""


@contextmanager
def recorded(tracker: Tracker) -> Iterator[None]:
    """Send the workers' log entries, and set the run's status at the end of the block.

    Entries that MLflow does not accept now stay in the run's folder; the run does not fail.

    Args:
        tracker: of the run.

    Raises:
        InputError: the disk is full.
    """
    folder = run_folder(home(), tracker.run_id)
    log = Sender(folder / LOG_FOLDER, lambda: tracker)
    killed = cleanup_on_exit(lambda: finish_soon(tracker, "KILLED").join(1))
    with killed, ending(lambda status: _close(log, tracker, status)), system_metrics(tracker):
        try:
            yield
        except OSError as error:
            if why := disk_fault(error, folder):
                raise InputError(f"{why}, and resume with `{resume_command(tracker.run_id)}`") from error
            raise


def finish_soon(tracker: Tracker, status: Status) -> threading.Thread:
    """Start and return a thread that sets a run's status, because MLflow may not answer."""
    thread = threading.Thread(target=tracker.finish, args=[status], daemon=True)
    thread.start()
    return thread


def send(tracker: Tracker, status: Status | None = None) -> None:
    """Send the unsent part of a run's log to MLflow, and print how much remains.

    Args:
        tracker: of the run.
        status: final status, if the run ends now.
    """
    folder = run_folder(home(), tracker.run_id) / LOG_FOLDER
    if status is not None or folder.is_dir():
        _close(Sender(folder, lambda: tracker), tracker, status)


def _close(log: Sender, tracker: Tracker, status: Status | None) -> None:
    again, note = f"`{resume_command(tracker.run_id)}` sends them", ""
    if status == "KILLED" and any(SCORED in entry.tags for entry, _ in log.entries()):
        status = "FINISHED"
        scored = "all its scores were logged before; figures may be missing"
        print(f"note: run {tracker.run_id} is finished: {scored}", file=sys.stderr)
    full = False
    if status is not None:
        try:
            log.end(status)
        except OSError:  # the disk is full
            full = True
    log.close(KILLED_SECONDS if status == "KILLED" else CLOSE_SECONDS)
    if status is not None and full:
        tracker.finish(status)
    if log.unsent:
        why = f"are not in MLflow yet ({log.why or 'no answer'})"
        note = f"{log.unsent:,} entries of run {tracker.run_id} {why}: {log.path} keeps them, and {again}"
    elif (status or tracker.status()) == "FINISHED":
        if why := send_members(log.folder, tracker):
            what = f"runs of the tasks of {tracker.run_id} are not all in MLflow ({why})"
            note = f"{what}: {log.folder} keeps them, and {again}"
        else:
            shutil.rmtree(log.folder)
    if note:
        print(f"note: {note}", file=sys.stderr)


def send_members(folder: Path, joint: Tracker) -> str:
    """Send the logs of jointly trained tasks, each as a child run of the joint one, created if new.

    Args:
        folder: of the joint run's log.
        joint: the joint run, whose log MLflow already has.

    Returns:
        Why MLflow lacks some of them; empty if it has all.
    """
    missing = []
    for own in sorted((folder / MEMBERS).glob("*")):
        tags = {JOINT: joint.run_id, MEMBER: own.name}
        of = read_record(Described, own / DESCRIBED, what="the description of a run")
        try:
            known = find_runs(joint.uri, of.experiment, finished=False)
            if same := [each.run_id for each in known if tags.items() <= each.tags.items()]:
                run = Tracker.attach(joint.uri, same[0], running=False)
            else:
                more = {**tags, PARENT: joint.run_id, **inherited(joint.all_tags())}
                run = of.start(joint.uri, home(), more_tags=more)
                run.json("run.json", of.settings)
        except InputError as error:
            missing.append(str(error))
            continue
        log = Sender(own, lambda run=run: run)
        log.end("FINISHED")
        log.close()
        if log.unsent:
            missing.append(log.why or "no answer")
    return "; ".join(dict.fromkeys(missing))


PICTURES = "figures"
"""The artifact folder of figures and pages."""
EVALUATION = "evaluation"
"""The artifact folder of an evaluation's files."""
GPU_LOAD, GPU_MEMORY = "gpu/load", "gpu/memory"
"""Metrics of a run on a GPU: the share of the last epoch's time (since a checkpoint within it, if any) in which it
computed steps, without the validation; the peak share of its memory that the process reserved."""
_FAILED = "failed.txt"


def costs(model: nn.Module, progress: Progress, *, steps: int) -> dict[str, float]:
    """Return the numbers of weights, in total and of aggregators, and the cost of a step of all workers, if trained.

    `cost/step` is in `infra.compute.cost.UNIT`, `cost/step_ms` the underlying milliseconds of CPU time (or of an
    accelerator), and `time/step_ms` wall-clock time, which depends on the load of the machine.
    """
    from polypool.aggregators.aggregator import Aggregator
    from polypool.infra.compute.dist import world

    pools = [module for module in model.modules() if isinstance(module, Aggregator)]
    of_pools = {id(p): p.numel() for pool in pools for p in pool.parameters()}
    weights = {
        "weights/all": float(sum(p.numel() for p in model.parameters())),
        "weights/aggregators": float(sum(of_pools.values())),
    }
    if not steps:
        return weights
    return weights | {
        "time/step_ms": 1e3 * progress.seconds / steps,
        "cost/step_ms": 1e3 * world() * progress.cost_seconds / max(1, progress.cost_steps),
        "cost/step": world() * progress.cost / max(1, progress.cost_steps),
    }


def printed(value: float) -> str:
    """Return a metric as text for a column: two decimals, three for values up to 1."""
    return f"{value:9.3f}" if 0 < abs(value) <= 1 else f"{value:8.2f}"


def headline(evaluation: Evaluation) -> dict[str, float]:
    """Return the primary metric of an evaluation under task-independent names.

    Returns:
        `test/score`, and `test/chance` and `test/chance_normalised` if chance level and best value are known; empty for
        a split without answers.
    """
    metric = evaluation.primary
    if metric.name not in evaluation.metrics:
        return {}
    value = evaluation.metrics[metric.name]
    numbers = {"score": value, "chance": metric.chance, "chance_normalised": metric.chance_normalised(value)}
    return {f"test/{name}": number for name, number in numbers.items() if not math.isnan(number)}


def log_evaluation(log: Log | Tracker, evaluation: Evaluation, *, step: int, own: bool = True) -> None:
    """Log an evaluation: metrics with their descriptions, per-query results and files.

    Args:
        log: of the run.
        evaluation: of a split.
        step: training step of the model.
        own: whether the split is the test split and the protocol the run's own; then also log `headline` and costs.
    """
    shown = {f"{evaluation.protocol}/{name}": value for name, value in evaluation.metrics.items()}
    if own:
        costs = {
            "cost/embed": evaluation.embed_cost,
            "cost/query": evaluation.query_cost,
            "bytes/item": evaluation.item_bytes,
        }
        shown |= headline(evaluation)
        shown |= {name: value for name, value in costs.items() if not math.isnan(value)}
    log.log(shown, step=step)
    name, described = file_name(evaluation.protocol), metrics_json([evaluation.primary, *evaluation.others])
    _log_files(log, {f"{name}.json": described}, FOLDER)
    version = {VERSION_TAG + evaluation.protocol: str(evaluation.protocol_version)}
    log.tags(metrics_tag(evaluation.protocol, described) | version)
    arrays: dict[str, Any] = {**evaluation.per_query}
    np.savez_compressed(packed := io.BytesIO(), **arrays)
    per_query = {
        f"{name}.npz": packed.getvalue(),
        f"{name}.json": queries_json(evaluation.query_metrics).encode(),
    }
    _log_files(log, per_query, QUERIES)
    _log_files(log, evaluation.files, EVALUATION)


def log_pictures(log: Log | Tracker | None, *makers: Callable[[], Pictures]) -> None:
    """Draw pictures and log them; every worker calls this, and rank 0, which has a log, draws.

    An error does not end the run: it is logged and written to a file next to the pictures.

    Args:
        log: destination.
        makers: each returns a record to draw, or files by name.
    """
    from polypool.pipelines.figures.pages import draw  # templates and decoders, once, at the end

    files: dict[str, bytes] = {}
    for make in makers:
        try:
            record = make()
            files |= draw(record) if log is not None else {}
        except Exception:
            logging.getLogger(__name__).exception(
                "some pictures of this run could not be drawn; its numbers are logged"
            )
            files[_FAILED] = files.get(_FAILED, b"") + traceback.format_exc().encode()
    if log is not None:
        _log_files(log, files, PICTURES)


def run_figures(
    watched: Sequence[Watched], history: Callable[[str], Sequence[tuple[int, float]]], *, title: str
) -> list[Callable[[], dict[str, bytes]]]:
    """Return functions that draw a run's figures: each returns PNGs by file name, or nothing if not applicable.

    Args:
        watched: observed aggregators of the model.
        history: returns steps and values of a metric; empty if it was never logged.
        title: of each figure.
    """
    from polypool.pipelines.figures.run_figures import (
        draw_coefficients,  # Matplotlib, once, at the end
        draw_negatives,
        draw_variance,
    )

    figures: dict[str, Callable[[], bytes | None]] = {
        "pooling.png": lambda: draw_coefficients(watched, heading=f"{title}: pooling coefficients"),
        "variance.png": lambda: draw_variance(watched, heading=f"{title}: diversity of sets"),
        "negatives.png": lambda: draw_negatives(
            history("train/negatives"),
            alignment=history("train/alignment"),
            uniformity=history("train/uniformity"),
            heading=f"{title}: ADOPT",
        ),
    }

    def drawn(name: str) -> dict[str, bytes]:
        figure = figures[name]()
        return {} if figure is None else {name: figure}

    return [partial(drawn, name) for name in figures]


def _log_files(log: Log | Tracker, files: Mapping[str, Any], into: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            (Path(folder) / file).write_bytes(content)
        if files:
            log.artifact(Path(folder), into)
