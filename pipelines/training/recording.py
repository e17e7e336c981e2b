"""Records of a run in MLflow: its description, and its log, sent while it trains and afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.fields import read_record
from polypool.infra.files import disk_fault
from polypool.infra.paths import home, keep_out_of_jobs
from polypool.infra.process.stopping import cleanup_on_exit
from polypool.infra.tracking import Outbox, Source, Tracker
from polypool.infra.tracking.journal import DESCRIBED, JOURNAL, MEMBERS
from polypool.infra.tracking.mlflow_private import system_metrics
from polypool.infra.tracking.outbox import CLOSE_SECONDS, REFUSED
from polypool.infra.tracking.provenance import command_line
from polypool.infra.tracking.run_records import HOME, JOINT
from polypool.infra.tracking.tracker import COMMAND, NOTE, PARENT, Status, ending
from polypool.pipelines.training.run_folder import OUTBOX, resume_command, run_folder
from polypool.pipelines.training.tuned import inherited
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run, from_json, located, modules, portable, to_params, to_record

COLLAPSED = "collapsed"
"""The tag of a run that has collapsed, with step and symptoms."""
SCORED = "scored"
"""The tag of a run all of whose scores are logged, with the protocol of its test split; figures may be missing."""
PRECISION = "precision"
"""The tag with what a run computes its losses in, `float32` or `bfloat16`."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A run before its first log entry; plain data that can be stored.

    Attributes:
        experiment: its name.
        name: of the run in MLflow.
        tags: by which it is found.
        params: its settings, nested.
        settings: the run as `polypool.tasks.run.from_json` reads it.
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
    """Return the settings of a recorded run, as `at_home` does.

    Raises:
        InputError: they are missing, or `from_json` refuses them.
    """
    run = from_json(tracker.read_json("run.json"), where=f"run.json of run {tracker.run_id}")
    return at_home(run, tracker.tag(HOME))


def at_home(run: Run, recorded: str) -> Run:
    """Return a run whose paths are absolute; those below the home of another machine are below the one here.

    Args:
        run: its settings.
        recorded: the home of the machine that started it; empty of an exported model, whose paths are relative.
    """
    return located(portable(run, recorded), home) if not os.path.isdir(recorded) else run


_DATA = "data."


def data_tags(adapter: TaskAdapter) -> dict[str, str]:
    """Return the tags with what an adapter describes of its data."""
    return {_DATA + name: value for name, value in adapter.describe().items()}


def recorded_data(tags: Mapping[str, str]) -> dict[str, str]:
    """Return what `data_tags` made tags of."""
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
    """Return the name of a run in MLflow: its own, else such as `gpo · image_text · mine · cells · seed 0`."""
    if run.name:
        return f"{run.name} · {run.task_name}" if run.jointly else run.name
    text = f", text {run.text_aggregator}" if run.text_aggregator not in ("", run.aggregator) else ""
    data = () if run.members or run.recipe.startswith(run.data.dataset) else (run.data.dataset,)
    what = (run.task_name, run.recipe, *data, *(() if run.members else (run.features,)))
    return " · ".join((run.aggregator + text, *dict.fromkeys(filter(None, what)), f"seed {run.seed}"))


def words(run: Run) -> str:
    """Return a description of a run; MLflow's table shows its beginning, the run's page all as Markdown."""
    return f"{_read(run)} {_trained(run)}"


def _read(run: Run) -> str:
    if run.members:
        each = [f"{name} on {of.data.dataset} ({of.data.corpus})" for name, of in run.members.items()]
        return f"Several tasks in one model, {run.task}: {'; '.join(each)}. {run.aggregator} pools."
    data, text = run.data, run.text_aggregator or run.aggregator
    visual = run.visual + (f" of {data.features}" if data.features else "")
    source = f" of {data.texts}" if data.texts else ""
    texts = f", and {text} what {run.text}{source} does" if run.text else ""
    whole = f", put together by {run.model}" if run.model else ""
    with_others = f", trained together with other tasks, {run.jointly}" if run.jointly else ""
    return (
        f"{run.task} on {data.dataset}: {run.aggregator} pools what {visual} gives{texts}"
        f"{whole}{with_others}. The corpus is {data.corpus}."
    )


def _trained(run: Run) -> str:
    optim, more = run.optim, "".join(f" + {of}" for of in run.regularisers)
    scored = f"its test split is {f'scored by {run.protocol}' if run.test else 'not scored'}."
    if not optim.epochs:
        return f"Nothing is trained; {scored}"
    goal = "The loss of each task" if run.members else f"{run.objective}{more}"
    start = f", from the weights of run {run.init}" if run.init else ""
    return (
        f"{goal} is minimised by {optim.optimiser} in {optim.epochs} epochs of batches of {optim.batch}{start}, seed "
        f"{run.seed}; the epoch that is best on val is kept, and {scored}"
    )


KILLED_SECONDS = 2.0
"""How long a stopped run waits for MLflow."""
MEMBER = "member"
"""Tag of the run of one of several tasks that were trained together, beside `JOINT`: the name of the task there."""


@contextmanager
def recorded(tracker: Tracker, *, new: bool = False) -> Iterator[None]:
    """Send what the workers log, and set the run's status at the end.

    What MLflow does not accept now stays in the run's folder; the run does not fail for it.

    Args:
        tracker: of the run.
        new: whether the run has logged nothing yet.

    Raises:
        InputError: the disk is full.
    """
    outbox = Outbox(run_folder(home(), tracker.run_id) / OUTBOX, lambda: tracker)
    if new:
        outbox.begin()
    killed = cleanup_on_exit(lambda: finish_soon(tracker, "KILLED").join(1))
    ended = ending(lambda status: _close(outbox, tracker, status))
    with killed, ended, system_metrics(lambda x, step: outbox.log(x, step=step), since=tracker.started):
        try:
            yield
        except OSError as error:
            if why := disk_fault(error, outbox.folder.parent):
                raise InputError(f"{why}, and go on with `{resume_command(tracker.run_id)}`") from error
            raise


def finish_soon(tracker: Tracker, status: Status) -> threading.Thread:
    """Set a run's status in a thread, which is returned: MLflow may not answer."""
    thread = threading.Thread(target=tracker.finish, args=[status], daemon=True)
    thread.start()
    return thread


def send(tracker: Tracker, status: Status | None = None) -> None:
    """Send what MLflow has not received of a run's log, and print what is left.

    Args:
        tracker: of the run.
        status: how it ended, where it ends now.
    """
    folder = run_folder(home(), tracker.run_id) / OUTBOX
    if status is not None or folder.is_dir():
        _close(Outbox(folder, lambda: tracker), tracker, status)


def _close(outbox: Outbox, tracker: Tracker, status: Status | None) -> None:
    if status == "KILLED" and outbox.has_tag(SCORED):
        status = "FINISHED"
        _note(f"run {tracker.run_id} is finished: all its scores were logged before; figures may be missing")
    kept = status is None
    if status is not None:
        with suppress(OSError):  # the disk is full
            outbox.end(status)
            kept = True
    outbox.close(KILLED_SECONDS if status == "KILLED" else CLOSE_SECONDS)
    if status is not None and not kept:
        tracker.finish(status)
    again = f"`{resume_command(tracker.run_id)}` sends them"
    if outbox.unsent:
        _note(
            f"{outbox.unsent:,} entries of run {tracker.run_id} are not in MLflow yet ({outbox.why or 'no answer'}): "
            f"{outbox.folder / JOURNAL} keeps them, and {again}"
        )
    elif (status or tracker.status()) == "FINISHED":
        if why := send_members(outbox.folder, tracker):
            what = f"runs of the tasks of {tracker.run_id} are not all in MLflow ({why})"
            _note(f"{what}: {outbox.folder} keeps them, and {again}")
        elif not outbox.refused:
            shutil.rmtree(outbox.folder)
    if outbox.refused:
        _note(
            f"MLflow refused {outbox.refused:,} entries: {outbox.folder / REFUSED} has them with the reasons"
        )


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def send_members(folder: Path, joint: Tracker) -> str:
    """Send the logs of tasks that were trained together, each as a run under the joint one.

    Args:
        folder: of the joint run's log.
        joint: the run, whose own log MLflow has.

    Returns:
        Why MLflow does not have all of them; empty where it does.
    """
    missing = []
    for own in sorted((folder / MEMBERS).glob("*")):
        try:
            tracker = _member(joint, own)
        except InputError as error:
            missing.append(str(error))
            continue
        outbox = Outbox(own, lambda tracker=tracker: tracker)
        outbox.end("FINISHED")
        outbox.close(CLOSE_SECONDS)
        if outbox.unsent or outbox.refused:
            missing.append(outbox.why or f"{outbox.refused:,} entries of {own.name} were refused")
    return "; ".join(dict.fromkeys(missing))


def _member(joint: Tracker, folder: Path) -> Tracker:
    """Return the run of a task, which is created where it does not exist yet."""
    tags = {JOINT: joint.run_id, MEMBER: folder.name}
    if found := joint.found_by(tags):
        return found
    described = read_record(Described, folder / DESCRIBED, what="the description of a run")
    run = described.start(
        joint.uri, home(), more_tags={**tags, PARENT: joint.run_id, **inherited(joint.all_tags())}
    )
    run.json("run.json", described.settings)
    return run
