"""The log of a run whose workers share no folder with the driver: sent to a request queue on the driver's machine."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from polypool.infra.files import atomic
from polypool.infra.tracking.journal import Journal, files_at

_STOP_SECONDS = 0.3  # between two requests whether to stop


class _Queue:
    """The actor of a request queue; see `open_queue`. Logs are named by their member, empty for the run's own."""

    def __init__(self, journal: Callable[[], Journal], last_checkpoint: Path, stop: Path) -> None:
        self._journals = {"": journal()}
        self._last_checkpoint, self._stop = last_checkpoint, stop

    def call(self, of: str, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self._journals[of], method)(*arguments, **options)

    def member(self, name: str, described: dict[str, Any]) -> None:
        self._journals[name] = self._journals[""].member(name, described)

    def files(self, of: str, files: dict[str, bytes], folder: str) -> None:
        with tempfile.TemporaryDirectory(prefix="polypool.") as place:
            for name, content in files.items():
                (Path(place) / name).write_bytes(content)
            self._journals[of].artifact(Path(place), folder)

    def read(self, artifact_path: str) -> dict[str, bytes]:
        kept = self._journals[""].download(artifact_path)
        files = [kept] if kept.is_file() else [path for path in kept.rglob("*") if path.is_file()]
        return {str(path.relative_to(kept)): path.read_bytes() for path in files}

    def note_checkpoint(self, name: str) -> None:
        with atomic(self._last_checkpoint) as file:
            file.write(name.encode())

    def stopping(self) -> bool:
        return self._stop.exists()


def open_queue(journal: Callable[[], Journal], last_checkpoint: Path, stop: Path) -> Any:
    """Return the handle of a new request queue on this machine, which ends with this process.

    Args:
        journal: opens the run's log.
        last_checkpoint: the file for the name of the last checkpoint.
        stop: the file that asks the workers to end.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # after its death, requests may be carried out twice
    kind = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Queue)
    return kind.options(scheduling_strategy=here).remote(journal, last_checkpoint, stop)


class RemoteLog:
    """The log of a run in a worker, with the methods of `Journal`; only reading and `flush` wait for the queue.

    Args:
        queue: as from `open_queue`.
        of: the name of a member run whose log this is; empty for the run's own.
    """

    def __init__(self, queue: Any, of: str = "") -> None:
        self._queue, self._of, self._pending, self._sending = queue, of, [], threading.Lock()
        self._members: list[RemoteLog] = []
        self._request, self._stopping, self._next = None, False, 0.0

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        numbers = {name: float(x) for name, x in metrics.items()}
        self._send(self._queue.call.remote(self._of, "log", numbers, step=step))

    def tags(self, tags: Mapping[str, str]) -> None:
        self._send(self._queue.call.remote(self._of, "tags", dict(tags)))

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file, or the files of a folder."""
        contents = {file.name: file.read_bytes() for file in files_at(path)}
        self._send(self._queue.files.remote(self._of, contents, folder))

    def member(self, name: str, described: Mapping[str, Any]) -> RemoteLog:
        """Return the log of a member run, as `Journal.member` does."""
        self._send(self._queue.member.remote(name, dict(described)))
        self._members.append(RemoteLog(self._queue, name))
        return self._members[-1]

    def download(self, artifact_path: str) -> Path:
        """Return the path of a copy of an artifact.

        Raises:
            InputError: there is none, or MLflow does not answer.
        """
        place = Path(self._copies.name) / artifact_path
        for name, content in _result(self._queue.read.remote(artifact_path)).items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return place

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return every value of a metric with its step."""
        return _result(self._queue.call.remote(self._of, "history", name))

    def flush(self) -> None:
        """Wait until all entries are stored.

        Raises:
            OSError: the disk of the driver's machine is full.
        """
        with self._sending:
            pending, self._pending = self._pending, []
        for each in pending:
            _result(each)
        for member in self._members:
            member.flush()

    def note_checkpoint(self, name: str) -> None:
        """Store the name of the last checkpoint on the driver's machine."""
        _result(self._queue.note_checkpoint.remote(name))

    def stopping(self) -> bool:
        """Whether to end after a checkpoint, by the last answer: this does not wait."""
        if self._request is None and time.monotonic() >= self._next:
            self._request = self._queue.stopping.remote()
        if self._request is not None and ray.wait([self._request], timeout=0)[0]:
            self._stopping, self._request = _result(self._request), None
            self._next = time.monotonic() + _STOP_SECONDS
        return self._stopping

    def close(self) -> None:
        """Wait as `flush` does, and delete the copies."""
        self.flush()
        self._copies.cleanup()

    def _send(self, request: Any) -> None:
        with self._sending:
            pending = [*self._pending, request]
            done, self._pending = ray.wait(pending, num_returns=len(pending), timeout=0)
        for each in done:
            _result(each)

    @cached_property
    def _copies(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="polypool.")


def _result(reference: Any) -> Any:
    """Return the result of a request, or raise the error of the queue as it was."""
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error
