"""Checkpoints of a run with the full state for a restart, their storage, and the best one, an artifact of the run.

Training in this process writes `checkpoint_SAMPLES_TIME` into the run's folder; Ray Train writes
`ray-TIME/checkpoint_SAMPLES_TIME` there or into object storage, with a folder for each start. The valid checkpoint with
the most samples is used.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pyarrow import fs
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polypool.encoders.adaptations import check_published, left_out
from polypool.encoders.visual.resnet import fill
from polypool.infra.compute.dist import gather_objects, rank
from polypool.infra.digests import DIGESTS, damaged, refuse_damaged, write_digests
from polypool.infra.errors import AwayError, InputError
from polypool.infra.fields import at_least, read_record
from polypool.infra.storage import Url, exists, explained, filesystem
from polypool.infra.tracking import Log, Tracker
from polypool.pipelines.training.loop.averaging import WeightAverage
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run, to_record

FILES = ("model.safetensors", "state.pt", "progress.json")
"""The files of a checkpoint."""


@dataclass(kw_only=True)
class Progress:
    """Progress of a run, in samples instead of steps: equal for any number of workers.

    Attributes:
        samples: number of training samples processed.
        seconds: wall-clock time of training.
        cost: of training on each worker, in `polypool.infra.compute.cost.UNIT`.
        cost_seconds, cost_steps: time and steps over which `cost` was measured.
        best, best_epoch: the best score on `val` so far, and its epoch.
        precision: of the steps; kept when another machine resumes.
    """

    samples: Annotated[int, at_least(0)] = 0
    seconds: float = 0.0
    cost: float = 0.0
    cost_seconds: float = 0.0
    cost_steps: Annotated[int, at_least(0)] = 0
    best: float | None = None
    best_epoch: Annotated[int, at_least(0)] = 0
    precision: Literal["float32", "bfloat16"] | None = None


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a model's parameters and buffers, except frozen published ones."""
    save_file(_own_weights(model), path)


def _own_weights(model: nn.Module) -> dict[str, Tensor]:
    published = left_out(model)
    # copies: safetensors rejects two names of one tensor, as of a shared part
    return {name: _copied(x).contiguous() for name, x in model.state_dict().items() if name not in published}


def load_weights(model: nn.Module, path: Path, *, optional: tuple[str, ...] = ()) -> None:
    """Load a file of `save_weights`.

    Args:
        model: of the same architecture.
        path: the file.
        optional: prefixes of names that the file may lack; such weights keep their values.

    Raises:
        InputError: the file cannot be read, has NaN, belongs to another architecture (the message lists missing and
            unexpected names), or was trained on other published weights.
    """
    weights, published = _read_weights(path), left_out(model)
    check_published(model, weights, where=path)
    kept = {
        name: x for name, x in model.state_dict().items() if name in published or name.startswith(optional)
    }
    fill(model, kept | weights, where=path)


def fill_weights(model: nn.Module, path: Path) -> tuple[list[str], list[str]]:
    """Load the weights of any model that match this one in name and shape.

    Returns:
        The loaded names, and the model's other names.

    Raises:
        InputError: the file cannot be read, has NaN, or has no parameter in common with the model.
    """
    weights, own = _read_weights(path), model.state_dict()
    same = {name: weights[name] for name in own if name in weights and weights[name].shape == own[name].shape}
    if not any(name in same for name, _ in model.named_parameters()):  # buffers do not count
        raise InputError(
            f"the weights {path} have no name and shape in common with the model: they hold {min(weights)} and "
            f"{len(weights) - 1} more, and it has {min(own)} and {len(own) - 1} more"
        )
    model.load_state_dict(own | same)
    return [*same], [name for name in own if name not in same]


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own types for damaged headers
        raise InputError(
            f"cannot read the weights {path}: {error}; the file is damaged, or no file of weights; copy it again, or "
            "export or train the model again"
        ) from error
    for name, x in weights.items():
        if x.is_floating_point() and x.isnan().any():  # infinity may be intended, as in a mask
            raise InputError(f"the weights {path} are damaged: {name} has values that are NaN")
    return weights


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A copy of the full state on the host, which can be written while training continues."""

    weights: dict[str, Tensor]
    state: dict[str, Any]
    progress: dict[str, Any]

    def write(self, folder: Path) -> None:
        weights, state, position = (folder / name for name in FILES)
        save_file(self.weights, weights)
        torch.save(self.state, state)
        position.write_text(json.dumps(self.progress))
        write_digests(folder, FILES)


def snapshot(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    average: WeightAverage | None = None,
) -> Snapshot | None:
    """Return the full state on rank 0, None on others; every worker calls this."""
    own = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        own["cuda"] = torch.cuda.get_rng_state()
    random = gather_objects(own)
    if rank() > 0:
        return None
    state = {"optimizer": _copied(optimizer.state_dict()), "random": random}
    state |= {"average": _copied(average.state())} if average else {}
    return Snapshot(weights=_own_weights(model), state=state, progress=asdict(progress))


def _copied(state: Any) -> Any:
    """Return a copy of a tree of dicts and lists, with its tensors on the host."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copied(part) for name, part in state.items()}
    return [_copied(part) for part in state] if isinstance(state, list | tuple) else state


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None = None,
) -> Progress:
    """Restore the full state on this worker; a rank that the checkpoint lacks keeps its random state.

    Raises:
        InputError: a file is missing or damaged, or belongs to another model.
    """
    weights, rest, position = (folder / name for name in FILES)
    refuse_damaged(folder, then="train the run again")
    load_weights(model, weights)
    progress = read_record(Progress, position, what="the progress of a run")
    state: dict[str, Any] = torch.load(rest, map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    if average:
        average.load(state["average"])
    if rank() < len(state["random"]):
        own = state["random"][rank()]
        torch.set_rng_state(own["cpu"])
        if "cuda" in own and torch.cuda.is_available():
            torch.cuda.set_rng_state(own["cuda"])
    return progress


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint match their checksums."""
    try:
        return (folder / DIGESTS).is_file() and not damaged(folder)
    except (InputError, OSError):
        return False


KEPT = 2
"""Number of checkpoints to keep: the last one, and the previous one in case the last is damaged."""
_FILE = re.compile(r"(.*/(checkpoint_\d[^/]*))/[^/]+")
_STOP_SECONDS = 1.0  # seconds between checks for a stop request


class DamagedError(InputError):
    """All checkpoints of a run are damaged."""


def time_stamp() -> str:
    """Return the time as part of a folder name."""
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}"


def _name(snapshot: Snapshot) -> str:
    """Return a checkpoint's name; later checkpoints sort last, independent of machines' clocks."""
    return f"checkpoint_{snapshot.progress['samples']:012d}_{time_stamp()}"


def checkpoints(at: Path | Url) -> list[str]:
    """Return the paths of a run's checkpoints in their file system, in order.

    Raises:
        InputError: the storage does not answer, or denies access.
    """
    with explained(at, "read"):
        system, root = filesystem(at)
        files = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    found = {match[1]: match[2] for file in files if (match := _FILE.fullmatch(file.path))}
    return sorted(found, key=lambda path: found[path])


def last_whole(at: Path | Url) -> str | None:
    """Return the path of a run's last valid checkpoint, after removing damaged later ones; None without checkpoints.

    Raises:
        DamagedError: all its checkpoints are damaged.
        InputError: the storage does not answer, or denies access.
    """
    found, damaged = checkpoints(at), list[str]()
    for path in reversed(found):
        with as_folder(at, path) as folder:
            written, whole = (folder / DIGESTS).is_file(), is_whole(folder)
        if not written:  # Ray was copying it when the run was killed
            print(f"note: {path} is incomplete, and ignored")
            continue
        if not whole:
            damaged.append(path)
            continue
        for after in damaged:
            print(f"note: {after} is damaged; training resumes from the previous checkpoint, {path}")
            _delete(at, after)
        return path
    if damaged:
        raise DamagedError(f"damaged: {', '.join(damaged)}")
    return None


@contextmanager
def as_folder(at: Path | Url, path: str) -> Iterator[Path]:
    """Yield a checkpoint's folder, or a local copy if it is in object storage."""
    if isinstance(at, Path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="polypool-checkpoint-") as copy:
        with explained(at, "read"):
            fs.copy_files(path, copy, source_filesystem=filesystem(at)[0])
        yield Path(copy)


def _delete(at: Path | Url, path: str) -> None:
    with explained(at, "deleted"):
        filesystem(at)[0].delete_dir(path)


def remove_old(at: Path | Url) -> None:
    """Keep the last `KEPT` checkpoints; remove older and unfinished ones, and Ray Train folders without a kept one.

    The caller holds the run's lock.

    Raises:
        InputError: the storage does not answer, or denies access.
    """
    found = checkpoints(at)
    for path in found[:-KEPT]:
        _delete(at, path)
    with explained(at, "read"):
        system, root = filesystem(at)
        folders = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    for folder in (each.path for each in folders if each.type == fs.FileType.Directory):
        name, kept = folder.rpartition("/")[2], any(path.startswith(f"{folder}/") for path in found[-KEPT:])
        if name.startswith(".checkpoint_") or (name.startswith("ray-") and not kept):
            _delete(at, folder)


@dataclass(kw_only=True)
class InFolder:
    """Log and checkpoints of training in this process.

    Checkpoints are written in the background, one at a time, so that at most two are in memory; a complete one is
    renamed to its final name.

    Attributes:
        folder: of the run.
        stop: a file that requests the end after a checkpoint.
        journal: opens the run's log, whose entries the driver sends to MLflow.
        start: the checkpoint to start from, if any.
        reported: called with the metrics of every report.
    """

    folder: Path
    stop: Path
    journal: Callable[[], Log]
    start: str | None = None
    reported: Callable[[dict[str, Any]], None] = lambda metrics: None
    _pending: Future | None = field(default=None, init=False)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "checkpoints"), init=False
    )

    def stopping(self) -> bool:
        return self.stop.exists()

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics and start writing a checkpoint.

        Raises:
            OSError: the previous checkpoint could not be written.
        """
        if snapshot is not None:
            self._wait()
            self._pending = self._pool.submit(self._write, snapshot)
        self.reported(metrics)

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Yield the folder of the checkpoint to resume from, if there is one."""
        yield Path(self.start) if self.start else None

    def close(self) -> None:
        """Wait for the last checkpoint; raises like `report`."""
        self._wait()
        self._pool.shutdown()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _write(self, snapshot: Snapshot) -> None:
        name = _name(snapshot)
        unfinished = self.folder / f".{name}"
        unfinished.mkdir(parents=True)
        try:
            snapshot.write(unfinished)
            unfinished.rename(self.folder / name)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # the disk may be full
            raise
        remove_old(self.folder)


@dataclass(kw_only=True)
class ByRay:
    """Log and checkpoints of a Ray Train worker; Ray uploads checkpoints, deletes old ones, and waits for the last.

    Attributes:
        at: the folder or URL of the run's checkpoints.
        stop: a file there, or in the folder of a sweep, that requests the end after a checkpoint.
        journal: see `InFolder`.
        start: the path of the checkpoint to start from, if any.
    """

    at: Path | Url
    stop: Path | Url
    journal: Callable[[], Log]
    start: str | None = None
    _stopping: bool = field(default=False, init=False)
    _looked: float = field(default=0.0, init=False)

    def stopping(self) -> bool:
        if isinstance(self.stop, Path):
            return self.stop.exists()
        if not self._stopping and time.monotonic() > self._looked + _STOP_SECONDS:
            with suppress(AwayError):  # ask again later
                self._stopping = exists(self.stop)
            self._looked = time.monotonic()
        return self._stopping

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics and, on rank 0, a checkpoint; every worker calls this."""
        import ray.train

        if snapshot is None:
            ray.train.report(metrics)
            return
        written = tempfile.mkdtemp(prefix="polypool-checkpoint-")
        snapshot.write(Path(written))
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint(written),
            checkpoint_dir_name=_name(snapshot),
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=True,
        )

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Yield the folder of the checkpoint to resume from, if there is one."""
        import ray.train

        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                yield Path(folder)
        elif self.start:
            with as_folder(self.at, self.start) as folder:
                yield folder
        else:
            yield None

    def close(self) -> None:
        """Do nothing: Ray Train waits."""


ARTIFACT = "model"
"""The artifact folder of a run's best checkpoint."""
WEIGHTS, RUN, ASSETS = "model.safetensors", "run.json", "assets.json"
"""Files of a best checkpoint and of an exported model."""

_OTHER_KINDS = {
    "comparison": "is the summary of a comparison or a sweep; give one of the runs that it compares",
    "ensemble": "is an ensemble; give one of its members, which its parameter `members` names",
    "sweep": "stands for a sweep; give one of its runs, such as the one that its tag `best.RECIPE` names",
    "transfer": "holds the scores of a trained run on other data; give that run, its parent",
    "": "was not made by polypool, as it has no tag `kind`; give a run that was trained",
}
"""For each kind of run without training: a description, and the run to give instead."""


def write_model(
    folder: Path,
    model: nn.Module,
    run: Run,
    adapter: TaskAdapter,
    *,
    digests: Mapping[str, str] | None = None,
) -> None:
    """Write weights, run and assets of a model to a folder, with their digests.

    Args:
        folder: an existing folder.
        model, run, adapter: to write.
        digests: of the training data; the adapter's current ones if None.
    """
    save_weights(model, folder / WEIGHTS)
    record = to_record(run, adapter.describe() if digests is None else digests)
    (folder / RUN).write_text(json.dumps(record, indent=1))
    (folder / ASSETS).write_text(json.dumps(adapter.assets))
    write_digests(folder, (WEIGHTS, RUN, ASSETS))


def best_checkpoint(tracker: Tracker) -> Path:
    """Return the folder of a run's best checkpoint.

    Raises:
        InputError: the run has none, or a file is missing or damaged.
    """
    again = f"`polypool train rerun {tracker.run_id}` trains it again"
    try:
        folder = tracker.download(ARTIFACT)
    except InputError as error:
        if (kind := tracker.tag("kind")) != "train":
            why = f"has no model: it {other_than_trained(kind)}"
        elif any(name.startswith("dev/") for name in tracker.metrics()):
            why = f"has no model any more: the artifact was deleted; {again}"
        else:
            resumes = f"`polypool train resume {tracker.run_id}` resumes it"
            why = f"has no model: it ended before its first epoch was scored; {resumes}"
        raise InputError(f"run {tracker.run_id} {why}") from error
    if missing := [file for file in (WEIGHTS, RUN, ASSETS) if not (folder / file).is_file()]:
        raise InputError(
            f"{folder}: {', '.join(missing)} of the model of run {tracker.run_id} is missing; {again}"
        )
    refuse_damaged(folder, then=again)
    return folder


def weights_of(run_id: str, uri: str) -> Path:
    """Return the weights file of a run's best checkpoint in the tracking store `uri`.

    Raises:
        InputError: an unknown run, or one without a checkpoint.
    """
    return best_checkpoint(Tracker.attach(uri, run_id, running=False)) / WEIGHTS


def other_than_trained(kind: str) -> str:
    """Return the part of a message that says what a run of another kind is, from its tag `kind`."""
    return _OTHER_KINDS.get(kind, f"is of kind {kind!r} and was not trained here; give a run that was")
