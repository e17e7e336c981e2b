"""Checkpoints of a run: in its folder, or where Ray Train uploads them in object storage.

Training in this process writes `checkpoint_SAMPLES_TIME` into the folder, Ray Train `ray-TIME/checkpoint_SAMPLES_TIME`,
with a folder for each time that it was started. The whole one with the most samples counts.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from polypool.infra.errors import InputError
from polypool.infra.storage import Url, exists, explained, filesystem
from polypool.infra.tracking import Log

if TYPE_CHECKING:
    from polypool.pipelines.training.checkpoints.format import Snapshot

KEPT = 2
"""Checkpoints of a run that are kept: the last one, and the one before in case that is damaged."""
_UNFINISHED = "."
"""Prefix of a checkpoint that is being written."""
_FILE = re.compile(r"(.*/(checkpoint_\d[^/]*))/[^/]+")
_STOP_SECONDS = 1.0  # between two looks for a request to stop


class DamagedError(InputError):
    """No checkpoint of a run is whole."""


def time_stamp() -> str:
    """Return the time as a part of a folder's name."""
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}"


def _name(snapshot: Snapshot) -> str:
    """Return a checkpoint's name, by which later ones come last whatever the clocks of machines show."""
    return f"checkpoint_{snapshot.samples:012d}_{time_stamp()}"


def checkpoints(at: Path | Url) -> list[str]:
    """Return the paths of a run's checkpoints in their file system, the last one last.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    with explained(at, "read"):
        system, root = filesystem(at)
        files = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    found = {match[1]: match[2] for file in files if (match := _FILE.fullmatch(file.path))}
    return sorted(found, key=lambda path: found[path])


def last_whole(at: Path | Url) -> str | None:
    """Return the path of a run's last checkpoint, after removing damaged ones behind it; None where it made none.

    Raises:
        DamagedError: none of its checkpoints is whole.
        InputError: the storage does not answer, or refuses.
    """
    from polypool.pipelines.training.checkpoints.format import is_whole

    found, damaged = checkpoints(at), list[str]()
    for path in reversed(found):
        with as_folder(at, path) as folder:
            whole = is_whole(folder)
        if not whole:
            damaged.append(path)
            continue
        for after in damaged:
            print(f"note: {after} is damaged; training goes on from the checkpoint before it, {path}")
            _delete(at, after)
        return path
    if damaged:
        raise DamagedError(f"damaged: {', '.join(damaged)}")
    return None


@contextmanager
def as_folder(at: Path | Url, path: str) -> Iterator[Path]:
    """Yield the folder of a checkpoint: itself, or a copy from object storage."""
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
    """Remove unfinished checkpoints, all but the last two, and folders of Ray Train without any.

    The caller holds the run's lock.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    found = checkpoints(at)
    for path in found[:-KEPT]:
        _delete(at, path)
    with explained(at, "read"):
        system, root = filesystem(at)
        folders = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    for folder in (each.path for each in folders if each.type == fs.FileType.Directory):
        name, kept = folder.rpartition("/")[2], any(path.startswith(f"{folder}/") for path in found[-KEPT:])
        if name.startswith(f"{_UNFINISHED}checkpoint_") or (name.startswith("ray-") and not kept):
            _delete(at, folder)


@dataclass(kw_only=True)
class InFolder:
    """Log and checkpoints of training in this process.

    A checkpoint is written in the background, one at a time, so that at most two are in memory; it gets its name once
    it is whole.

    Attributes:
        folder: of the run.
        stop: a file that asks for the end after a checkpoint.
        journal: opens the run's log, whose entries the driver sends to MLflow.
        start: the checkpoint that training begins with, if any.
        reported: called with the metrics of every report.
    """

    folder: Path
    stop: Path
    journal: Callable[[], Log]
    start: Path | None = None
    reported: Callable[[dict[str, Any]], None] | None = None
    _pending: Future | None = field(default=None, init=False)

    def log(self) -> Log:
        return self.journal()

    def stopping(self) -> bool:
        return self.stop.exists()

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics and begin to write a checkpoint.

        Raises:
            OSError: the previous checkpoint could not be written.
        """
        if snapshot is not None:
            self._wait()
            self._pending = self._pool.submit(self._write, snapshot)
        if self.reported:
            self.reported(metrics)

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Yield the folder of the checkpoint to resume from, if there is one."""
        yield self.start

    def close(self) -> None:
        """Wait for the last checkpoint; raises as `report` does."""
        self._wait()
        self._pool.shutdown()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="checkpoints")

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _write(self, snapshot: Snapshot) -> None:
        name = _name(snapshot)
        unfinished = self.folder / f"{_UNFINISHED}{name}"
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
    """The same for a worker of Ray Train, which uploads the checkpoints, deletes old ones, and waits for the last.

    Attributes:
        at: the folder or URL of the run's checkpoints.
        stop: a file there, or in the folder of a sweep, that asks the workers to end after a checkpoint.
        journal: as of `InFolder`.
        start: the path of the checkpoint that training begins with; empty for none.
    """

    at: Path | Url
    stop: Path | Url
    journal: Callable[[], Log]
    start: str = ""
    _stopping: bool = field(default=False, init=False)
    _looked: float = field(default=0.0, init=False)

    def log(self) -> Log:
        return self.journal()

    def stopping(self) -> bool:
        if isinstance(self.stop, Path):
            return self.stop.exists()
        if not self._stopping and time.monotonic() > self._looked + _STOP_SECONDS:
            self._stopping, self._looked = exists(self.stop), time.monotonic()
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
        """Nothing to wait for."""
