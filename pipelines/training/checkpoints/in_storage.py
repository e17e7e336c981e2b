"""Checkpoints of a run in object storage.

`checkpoint_000000012800_5f3a.json`, the manifest, is written after the files of `checkpoint_000000012800_5f3a/` and
deleted before them, so a checkpoint is whole or absent. Names hold the samples trained on and so sort by progress.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polypool.infra.compute.dist import gather_objects, rank
from polypool.infra.errors import AbsentError, AwayError, InputError
from polypool.infra.fields import from_plain
from polypool.infra.files import make_folder, sha256
from polypool.infra.lease.in_bucket import refuse_lost
from polypool.infra.process.beside import OneAtATime
from polypool.infra.storage import cache, remote
from polypool.infra.storage.places import Url
from polypool.infra.storage.transfer import read_json
from polypool.pipelines.training.run_folder import held_by_another

if TYPE_CHECKING:
    from polypool.infra.ray.remote_log import RemoteLog
    from polypool.pipelines.training.checkpoints.format import Snapshot

_NAME = re.compile(r"(checkpoint_\d+_[0-9a-f]+)(\.json|/.+)")
_FILE = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint by name, with their SHA-256 and sizes."""

    sha256: Mapping[str, str]
    bytes: Mapping[str, int]


def newest(run: Url) -> str | None:
    """Return the name of the last whole checkpoint; None where there is none.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    return max((name for name, files in _files(run).items() if f"{name}.json" in files), default=None)


def lacking(run: Url, name: str) -> list[str]:
    """Return the files of a checkpoint that are missing or have another size.

    Raises:
        InputError: it is none, or the storage does not answer or refuses.
    """
    gone = []
    for file, size in _manifest(run, name).bytes.items():
        try:
            if remote.size_and_time(run / name / file)[0] != size:
                gone.append(file)
        except AbsentError:
            gone.append(file)
    return gone


@contextmanager
def fetched(run: Url, name: str) -> Iterator[Path]:
    """Yield a folder with a checkpoint's files, verified by their SHA-256 and read through the cache.

    Raises:
        InputError: it is damaged or missing, the storage does not answer or refuses, or the disk is full.
    """
    copies = {
        file: cache.whole(run / name / file, sha256=check)
        for file, check in _manifest(run, name).sha256.items()
    }
    with tempfile.TemporaryDirectory(prefix="polypool.") as folder:
        for file, copy in copies.items():
            (Path(folder) / file).symlink_to(copy)
        yield Path(folder)


def write(run: Url, snapshot: Snapshot, *, before: Callable[[], object] = lambda: None) -> str:
    """Write a checkpoint, delete the others, and return its name; retries for ten minutes.

    Args:
        run: the folder.
        snapshot: the state.
        before: called before the checkpoint becomes valid; raises to prevent it.

    Raises:
        InputError: the storage does not answer, or refuses.
        OSError: the disk of this machine, where it is written first, is full.
    """
    name = f"checkpoint_{snapshot.samples:012d}_{secrets.token_hex(4)}"
    waiting = make_folder(cache.folder() / "writing")
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=waiting) as folder:
        snapshot.write(Path(folder))
        files = sorted(Path(folder).iterdir())
        for file in files:
            remote.upload(file, run / name / file.name, attempts=remote.PATIENT)
        manifest = Manifest(
            sha256={file.name: sha256(file) for file in files},
            bytes={file.name: file.stat().st_size for file in files},
        )
        last = Path(folder) / f"{name}.json"
        last.write_text(json.dumps(asdict(manifest)))
        before()
        remote.upload(last, run / last.name, attempts=remote.PATIENT)
    with suppress(AwayError):  # the next checkpoint does it
        keep(run, name)
    return name


def keep(run: Url, name: str | None) -> None:
    """Delete all checkpoints but one, and unfinished ones; the caller holds the run's lease.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    for other, files in _files(run).items():
        if other != name:
            for file in sorted(files, key=lambda file: not file.endswith(f"{other}.json")):  # manifest first
                remote.delete(run / file)


def _files(run: Url) -> dict[str, list[str]]:
    """Return the files of each checkpoint, whole or not, as paths in the run's folder."""
    found: dict[str, list[str]] = {}
    for path in remote.list_files(run):
        if match := _NAME.fullmatch(path):
            found.setdefault(match[1], []).append(path)
    return found


def _manifest(run: Url, name: str) -> Manifest:
    where = run / f"{name}.json"
    read = from_plain(Manifest, read_json(where, what="the manifest of a checkpoint"), where=str(where))
    if read.sha256.keys() != read.bytes.keys() or not all(map(_FILE.fullmatch, read.bytes)):
        raise InputError(
            f"{where}: is no manifest of a checkpoint: its names of files differ or are no names"
        )
    return read


@dataclass(kw_only=True)
class InStorage:
    """Log and checkpoints of a worker whose machine shares no folder with the driver's.

    Checkpoints go to object storage, one at a time in the background; the log goes to the driver's machine. Ray Train
    lists no checkpoints.

    Attributes:
        run_id: the run.
        at: the URL of its checkpoints.
        token: of the lease on them.
        folder: of this machine, where checkpoints wait for their upload.
        queue: the request queue on the driver's machine (`polypool.infra.ray.remote_log.open_queue`).
    """

    run_id: str
    at: Url
    token: str
    folder: Path
    queue: Any
    _last: str = ""

    @property
    def ray_folder(self) -> Path:
        """Where Ray Train keeps files that are deleted at the end."""
        return Path(tempfile.gettempdir()) / f"polypool-{self.run_id}"

    def progress(self) -> str:
        """Return the name of the last checkpoint; unchanged while the storage does not answer."""
        with suppress(InputError):
            self._last = newest(self.at) or ""
        return self._last

    def log(self) -> RemoteLog:
        return self._log

    def stopping(self) -> bool:
        return self._log.stopping()

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        """Report metrics and, on rank 0, begin to write a checkpoint; every worker calls this.

        Raises:
            InputError: the previous checkpoint could not be written.
            OSError: likewise, as the disk of this machine is full.
        """
        import ray.train

        if snapshot is not None:
            self._writer.submit(partial(self._write, snapshot))
        ray.train.report(metrics)

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        """Yield the folder of the checkpoint to resume from, if there is one: the same on all workers."""
        name = gather_objects(newest(self.at) if rank() == 0 else None)[0]
        if name:
            with fetched(self.at, name) as folder:
                yield folder
        else:
            yield None

    def close(self) -> None:
        """Wait for the last checkpoint; raises as `report` does."""
        self._writer.close()

    def tidy(self) -> None:
        """Delete the files of Ray Train."""
        shutil.rmtree(self.ray_folder, ignore_errors=True)

    @cached_property
    def _log(self) -> RemoteLog:
        from polypool.infra.ray.remote_log import RemoteLog

        return RemoteLog(self.queue)

    @cached_property
    def _writer(self) -> OneAtATime:
        return OneAtATime("checkpoints")

    def _write(self, snapshot: Snapshot) -> None:
        self._log.note_checkpoint(write(self.at, snapshot, before=self._ready))

    def _ready(self) -> None:
        """Wait until earlier log entries are stored, and refuse where another machine has taken the run."""
        self._log.flush()
        refuse_lost(self.at, self.token, of=held_by_another(self.run_id))
