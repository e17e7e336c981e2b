"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.train import Checkpoint

    from infra.checkpoint import Snapshot

UNFINISHED = "."
"""What stands before the name of a checkpoint that is being written."""


class Background:
    """Hands the checkpoints of a worker of Ray Train to Ray, when they are written.

    One is written at a time, and the next waits for it, so that at most two are held in memory. A checkpoint counts
    once it is whole: it has its name from then on, and Ray hears of it after.

    Args:
        folder: of the run, which Ray keeps checkpoints in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = threading.Event()
        self._written.set()

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics, and a checkpoint where this worker has it; every worker calls this.

        A checkpoint that cannot be written is an error of the run, if not of this call.
        """
        import ray.train
        from ray.train import Checkpoint, CheckpointUploadMode

        if snapshot is None:
            ray.train.report(metrics)
            return
        self._written.wait()
        self._written.clear()

        def write(_: Checkpoint, name: str) -> Checkpoint:
            try:
                return Checkpoint(str(self._write(snapshot, name)))
            finally:
                self._written.set()

        ray.train.report(
            metrics,
            checkpoint=Checkpoint(
                str(self._folder)
            ),  # a place, as Ray asks for one; `write` makes the checkpoint
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=False,
            checkpoint_upload_fn=write,
        )

    def _write(self, snapshot: Snapshot, name: str) -> Path:
        place, unfinished = self._folder / name, self._folder / f"{UNFINISHED}{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            snapshot.write(unfinished)
            return unfinished.rename(place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # there may be no room left
            raise


class Uploads:
    """Writes the checkpoints of a worker of Ray Train to object storage, which Ray hears nothing of.

    As of `Background`, one is written at a time, and the next waits for it.

    Args:
        write: writes a checkpoint whole, or raises.
    """

    def __init__(self, write: Callable[[Snapshot], object]) -> None:
        self._write, self._pool = write, ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._written: Future | None = None

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics, and write a checkpoint where this worker has it; every worker calls this.

        Raises:
            InputError: the one before could not be written.
            OSError: that was for want of space on this machine.
        """
        import ray.train

        if snapshot is not None:
            self._wait()
            self._written = self._pool.submit(self._write, snapshot)
        ray.train.report(metrics)

    def close(self) -> None:
        """Wait for the last one; raises as `report` does."""
        self._wait()
        self._pool.shutdown()

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()
