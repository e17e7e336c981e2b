"""Checkpoints in the folder of a run, which every machine of the run shares.

The last one counts: the one that Ray Train lists where it trains the run, else the last by name.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, read_json
from polypool.infra.process.beside import OneAtATime
from polypool.infra.tracking.journal import Journal

if TYPE_CHECKING:
    from ray.train import Checkpoint

    from polypool.pipelines.training.checkpoints.format import Snapshot

LISTING = "checkpoint_manager_snapshot.json"
"""Ray Train's list of the checkpoints, from which it resumes."""
LAST_STORED = "whole"
"""The file with the name of the last checkpoint of a run that keeps them in object storage."""
KEPT = 2
"""Checkpoints of a run that are kept: the last one, and the one before in case that is damaged."""
UNFINISHED = "."
"""Prefix of a checkpoint that is being written."""


def listed(folder: Path) -> str | None:
    """Return the name of the checkpoint that Ray Train resumes from; None where it has listed none.

    Raises:
        InputError: the list is damaged.
    """
    path = folder / LISTING
    if not path.is_file():
        return None
    state = read_json(path, what="the list of a run's checkpoints")
    latest = state.get("latest_checkpoint_result") if isinstance(state, dict) else None
    name = latest.get("checkpoint_dir_name") if isinstance(latest, dict) else None
    if not isinstance(name, str):
        raise InputError(f"{path}: names no checkpoint")
    return name


def last_name(folder: Path) -> str | None:
    """Return the name of the last checkpoint, here or in object storage, as recorded in the folder."""
    path, last = folder / LAST_STORED, last_checkpoint(folder)
    return last.name if last else path.read_text() if path.is_file() else None


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that a run resumes from, which may have been deleted; None where it has made none.

    Raises:
        InputError: Ray Train's list is damaged.
    """
    name = listed(folder)
    return folder / name if name else max(folder.glob("checkpoint_[0-9]*"), default=None)


def choose_last(folder: Path, *, for_ray: bool) -> None:
    """Let the last whole checkpoint count where the listed one is damaged, or Ray Train has listed none.

    It could list none on a full disk, and lists none where it does not train. Where no checkpoint is whole, all stays.
    What is passed over for its damage is printed.

    Args:
        folder: of the run.
        for_ray: whether Ray Train is to resume from it.
    """
    from polypool.pipelines.training.checkpoints.format import is_whole

    name = None
    with suppress(InputError):
        name = listed(folder)
    if name and is_whole(folder / name):
        return
    all_there = sorted(folder.glob("checkpoint_[0-9]*"))
    whole = [each for each in all_there if is_whole(each)]
    if not whole:
        return
    for each in all_there[all_there.index(whole[-1]) + 1 :]:
        print(f"note: {each} is damaged; training goes on from the checkpoint before it, {whole[-1].name}")
    if for_ray:
        from polypool.infra.ray.internals import checkpoint_listing

        with atomic(folder / LISTING) as file:
            file.write(checkpoint_listing(whole[-1].name).encode())
        return
    (folder / LISTING).unlink(missing_ok=True)
    for each in all_there:
        if each.name > whole[-1].name:
            shutil.rmtree(each)


def remove_unlisted(folder: Path) -> None:
    """Remove unfinished checkpoints and all but the last two, of which one may be damaged later.

    The caller holds the run's lease.

    Raises:
        InputError: Ray Train's list is damaged.
    """
    for each in folder.glob(f"{UNFINISHED}checkpoint_[0-9]*"):
        shutil.rmtree(each, ignore_errors=True)
    last = last_checkpoint(folder)
    if last is None or not last.is_dir():
        return
    all_there = sorted(folder.glob("checkpoint_[0-9]*"))
    kept = all_there[-KEPT:]
    if listed(folder):
        names = (folder / LISTING).read_text()
        kept = [each for each in all_there if f'"{each.name}"' in names]
    for each in all_there:
        if each not in kept:
            shutil.rmtree(each, ignore_errors=True)


@dataclass(kw_only=True)
class InFolder:
    """Log and checkpoints of a worker in the run's folder.

    A checkpoint is written in the background, one at a time, so that at most two are in memory; it gets its name once
    it is whole, and replaces the one before.

    Attributes:
        folder: of the run.
        stop: a file that asks the workers to end after a checkpoint.
        journal: opens the run's log, whose entries the driver sends to MLflow.
        reported: called with the metrics of every report.
    """

    folder: Path
    stop: Path
    journal: Callable[[], Journal]
    reported: Callable[[dict[str, Any]], None] | None = None

    def progress(self) -> str:
        """Return the name of the last checkpoint; empty where there is none."""
        with suppress(InputError):
            return getattr(last_checkpoint(self.folder), "name", "")
        return ""

    def log(self) -> Journal:
        return self.journal()

    def stopping(self) -> bool:
        return self.stop.exists()

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics and begin to write a checkpoint.

        Raises:
            OSError: the previous checkpoint could not be written.
        """
        if snapshot is not None:
            self._writer.submit(partial(self._replace, snapshot))
        if self.reported:
            self.reported(metrics)

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Yield the folder of the checkpoint to resume from, if there is one."""
        yield last_checkpoint(self.folder)

    def close(self) -> None:
        """Wait for the last checkpoint; raises as `report` does."""
        self._writer.close()

    @cached_property
    def _writer(self) -> OneAtATime:
        return OneAtATime("checkpoints")

    def _replace(self, snapshot: Snapshot) -> None:
        before = last_checkpoint(self.folder)
        name = f"checkpoint_{datetime.now():%Y-%m-%d_%H-%M-%S.%f}"  # as Ray Train's
        if before and name <= before.name:  # the clock was set back
            name = f"{before.name}_"
        self._write(snapshot, name, unlist=True)
        remove_unlisted(self.folder)

    def _write(self, snapshot: Snapshot, name: str, *, unlist: bool = False) -> Path:
        unfinished = self.folder / f"{UNFINISHED}{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            snapshot.write(unfinished)
            if unlist:
                (self.folder / LISTING).unlink(missing_ok=True)
            return unfinished.rename(self.folder / name)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # the disk may be full
            raise


@dataclass(kw_only=True)
class ListedByRay(InFolder):
    """The same for workers of Ray Train, which lists the checkpoints, deletes old ones, and waits for the last."""

    @property
    def ray_folder(self) -> Path:
        """Where Ray Train keeps a folder named by the run."""
        return self.folder.parent

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics and, on rank 0, a checkpoint; every worker calls this.

        A checkpoint that cannot be written is an error of the run, raised by Ray Train later.
        """
        import ray.train
        from ray.train import Checkpoint, CheckpointUploadMode

        if snapshot is None:
            ray.train.report(metrics)
            return
        self._writing.acquire()

        def write(_: Checkpoint, name: str) -> Checkpoint:
            try:
                return Checkpoint(str(self._write(snapshot, name)))
            finally:
                self._writing.release()

        ray.train.report(
            metrics,
            checkpoint=Checkpoint(str(self.folder)),  # Ray requires a folder; `write` makes the checkpoint
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=False,
            checkpoint_upload_fn=write,
        )

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Yield the folder of the checkpoint to resume from, if there is one."""
        import ray.train

        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                yield Path(folder)
        else:
            yield None

    def close(self) -> None:
        """Nothing to wait for."""

    def tidy(self) -> None:
        """Nothing to delete: all files belong to the run."""

    @cached_property
    def _writing(self) -> threading.Semaphore:
        return threading.Semaphore()
