"""What a run's workers keep while it trains, and where: their log and their checkpoints, in a folder or in storage.

The driver makes a record of it, which goes to every worker and to the process of Ray's that looks after them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import InputError
from infra.ray.background import Background, Uploads
from infra.storage.places import Url
from infra.tracking.journal import Journal
from pipelines.training.folder import held_by_another, last_checkpoint

if TYPE_CHECKING:
    from infra.checkpoint import Snapshot
    from infra.ray.relay import Relay


@dataclass(frozen=True, kw_only=True)
class InFolder:
    """In the run's folder, which all machines of the run see. Ray Train notes the checkpoints there.

    Attributes:
        folder: of the run.
        stop: the file that asks the workers to end after a checkpoint.
        journal: makes the run's log, which the driver sends on to MLflow.
    """

    folder: Path
    stop: Path
    journal: Callable[[], Journal]

    @property
    def ray_folder(self) -> Path:
        """What Ray Train notes its own matters below."""
        return self.folder.parent

    def progress(self) -> str:
        """Return the name of the last checkpoint; empty where there is none."""
        with suppress(InputError):
            return getattr(last_checkpoint(self.folder), "name", "")
        return ""

    def log(self) -> Journal:
        """Return the run's log, which one worker has."""
        return self.journal()

    def stopping(self) -> bool:
        """Whether to end after a checkpoint."""
        return self.stop.exists()

    @cached_property
    def report(self) -> Callable[[dict[str, Any], Snapshot | None], None]:
        """What takes metrics and checkpoints; every worker calls it."""
        return Background(self.folder).report

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Give the folder of the checkpoint to go on with, if there is one."""
        import ray.train

        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                yield Path(folder)
        else:
            yield None

    def close(self) -> None:
        """Wait for what is being written, as Ray does."""

    def tidy(self) -> None:
        """Delete nothing: all that is there belongs to the run."""


@dataclass(frozen=True, kw_only=True)
class InStorage:
    """Checkpoints in object storage; the rest on the machine of the driver, which shares no folder with the workers'.

    Attributes:
        run_id: the run.
        at: the URL of its checkpoints.
        token: of the lease on it.
        folder: of this machine, where checkpoints wait.
        desk: on the driver's machine, as `infra.ray.relay.open_desk` gives it.
    """

    run_id: str
    at: Url
    token: str
    folder: Path
    desk: Any

    @property
    def ray_folder(self) -> Path:
        """What Ray Train notes its own matters below, none of which are read again."""
        return Path(tempfile.gettempdir()) / f"polypool-{self.run_id}"

    @cached_property
    def progress(self) -> Callable[[], str]:
        """Returns the name of the last checkpoint, the same while the storage does not answer."""
        return _Newest(self.at)

    def log(self) -> Relay:
        """Return the run's log, which one worker has."""
        return self._relay

    def stopping(self) -> bool:
        """Whether to end after a checkpoint, as far as this worker has heard."""
        return self._relay.stopping()

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Take metrics and checkpoints; every worker calls it."""
        self._uploads.report(metrics, snapshot)

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Give the folder of the checkpoint to go on with, if there is one: all workers the same."""
        from infra.compute.dist import gather_objects, rank
        from infra.storage.checkpoints import fetched, newest

        name = gather_objects(newest(self.at) if rank() == 0 else None)[0]
        if name:
            with fetched(self.at, name) as folder:
                yield folder
        else:
            yield None

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and raise what is wrong with it."""
        self._uploads.close()

    def tidy(self) -> None:
        """Delete what Ray Train noted, which nobody reads again."""
        shutil.rmtree(self.ray_folder, ignore_errors=True)

    @cached_property
    def _relay(self) -> Relay:
        from infra.ray.relay import Relay

        return Relay(self.desk)

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self._write)

    def _write(self, snapshot: Snapshot) -> None:
        from infra.storage.checkpoints import write

        self._relay.whole(write(self.at, snapshot, before=self._ready))

    def _ready(self) -> None:
        """Let nothing that was logged before a checkpoint be lost after it, and nobody write who has lost the run."""
        from infra.storage.claim import refuse_lost

        self._relay.flush()
        refuse_lost(self.at, self.token, of=held_by_another(self.run_id))


class _Newest:
    """Names the last checkpoint in storage.

    Args:
        at: the URL of a run's checkpoints.
    """

    def __init__(self, at: Url) -> None:
        self._at, self._last = at, ""

    def __call__(self) -> str:
        from infra.storage.checkpoints import newest

        with suppress(InputError):
            self._last = newest(self._at) or ""
        return self._last


Kept = InFolder | InStorage
