"""What the workers of a run leave with the machine of its driver, which may share no folder with theirs."""

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

from infra.files import atomic
from infra.ray.checkpoints import WHOLE
from infra.tracking.journal import Journal

_ASKS = 0.3  # seconds between two questions whether to stop


class _Desk:
    """Takes what workers log, in a process of Ray's on the driver's machine.

    Args:
        journal: makes that of the run.
        folder: of the run on this machine.
        stop: the file that asks the workers to end.
    """

    def __init__(self, journal: Callable[[], Journal], folder: Path, stop: Path) -> None:
        self._journal, self._folder, self._stop = journal(), folder, stop
        self._journals = {"": self._journal}

    def member(self, name: str, described: dict[str, Any]) -> None:
        self._journals[name] = self._journal.member(name, described)

    def log(self, of: str, metrics: dict[str, float], step: int) -> None:
        self._journals[of].log(metrics, step=step)

    def tags(self, of: str, tags: dict[str, str]) -> None:
        self._journals[of].tags(tags)

    def files(self, of: str, files: dict[str, bytes], folder: str) -> None:
        with tempfile.TemporaryDirectory(prefix="polypool.") as place:
            for name, content in files.items():
                (Path(place) / name).write_bytes(content)
            self._journals[of].artifact(Path(place), folder)

    def read(self, artifact_path: str) -> dict[str, bytes]:
        kept = self._journal.download(artifact_path)
        files = [kept] if kept.is_file() else [path for path in kept.rglob("*") if path.is_file()]
        return {str(path.relative_to(kept)): path.read_bytes() for path in files}

    def history(self, name: str) -> list[tuple[int, float]]:
        return self._journal.history(name)

    def whole(self, name: str) -> None:
        with atomic(self._folder / WHOLE) as file:
            file.write(name.encode())

    def stopping(self) -> bool:
        return self._stop.exists()


def open_desk(journal: Callable[[], Journal], folder: Path, stop: Path) -> Any:
    """Return a handle of a new desk on this machine, for `Relay`; it ends with this process.

    Args:
        journal: makes that of the run, there.
        folder: of the run on this machine.
        stop: the file that asks the workers to end.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # what it is asked twice, as it died, it may do twice
    kind = ray.remote(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)(_Desk)
    return kind.remote(journal, folder, stop)


class Relay:
    """The log of a run for a worker, kept on the driver's machine; takes the calls of `Tracker` that training makes.

    It waits for nobody, but where something is read, and in `flush`.

    Args:
        desk: what `open_desk` gave.
        of: the name of a run that comes with this one, whose log it is; empty for the run's own.
    """

    def __init__(self, desk: Any, of: str = "") -> None:
        self._desk, self._of, self._under_way, self._sending = desk, of, [], threading.Lock()
        self._members: list[Relay] = []
        self._asked, self._answer, self._next = None, False, 0.0

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step."""
        self._send(self._desk.log.remote(self._of, {name: float(x) for name, x in metrics.items()}, step))

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._send(self._desk.tags.remote(self._of, dict(tags)))

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep a file, or the files in a folder."""
        files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.is_file()]
        contents = {file.name: file.read_bytes() for file in files}
        self._send(self._desk.files.remote(self._of, contents, folder))

    def member(self, name: str, described: Mapping[str, Any]) -> Relay:
        """Return the log of a run of its own that comes with this one, as `Journal.member` does."""
        self._send(self._desk.member.remote(name, dict(described)))
        self._members.append(Relay(self._desk, name))
        return self._members[-1]

    def download(self, artifact_path: str) -> Path:
        """Return where a copy of an artifact can be read.

        Raises:
            InputError: there is none, or MLflow does not answer.
        """
        place = Path(self._copies.name) / artifact_path
        for name, content in _got(self._desk.read.remote(artifact_path)).items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return place

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return every value of a metric with its step."""
        return _got(self._desk.history.remote(name))

    def flush(self) -> None:
        """Wait until all of it is kept.

        Raises:
            OSError: it cannot be, as the disk there is full.
        """
        with self._sending:
            waits, self._under_way = self._under_way, []
        for each in waits:
            _got(each)
        for member in self._members:
            member.flush()

    def whole(self, name: str) -> None:
        """Tell of a checkpoint."""
        _got(self._desk.whole.remote(name))

    def stopping(self) -> bool:
        """Whether to end after a checkpoint, as far as that is known: nothing is waited for."""
        if self._asked is None and time.monotonic() >= self._next:
            self._asked = self._desk.stopping.remote()
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            self._answer, self._asked = _got(self._asked), None
            self._next = time.monotonic() + _ASKS
        return self._answer

    def close(self) -> None:
        """Wait as `flush` does, and keep no copies."""
        self.flush()
        self._copies.cleanup()

    def _send(self, under_way: Any) -> None:
        with self._sending:
            waits = [*self._under_way, under_way]
            done, self._under_way = ray.wait(waits, num_returns=len(waits), timeout=0)
        for each in done:
            _got(each)

    @cached_property
    def _copies(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="polypool.")


def _got(reference: Any) -> Any:
    """Return what the desk gave; what it raised is raised as it was."""
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error
