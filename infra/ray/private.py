"""A private Ray on this machine, which starts in the background."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from polypool.infra.errors import AwayError
from polypool.infra.files import free_bytes
from polypool.infra.process.progress import waiting
from polypool.infra.ray.internals import psutil

ON_ONE_MACHINE = {
    "RAY_AUTH_MODE": "token",  # the one in the user's home, which Ray makes: others on this machine have none
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # by default a run waits up to two seconds to begin, and to end
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process of its own, for clusters whose machines are taken away
    "RAY_worker_niceness": "0",  # by default 15: whatever else runs on the machine would go first
}
"""Default settings of a Ray that runs on this machine alone."""
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Settings with which Ray listens on 127.0.0.1 alone, as it does where no other machine can join."""
_IDLE = {"RAY_prestart_worker_first_driver": "0"}
"""Settings of the process that owns a private Ray: start no workers for it, as it has no work."""
_PROGRAM = Path(__file__).with_name("private_process.py")
_TOO_SLOW = "timed out during startup"
"""Ray's message when it gives up, after a time that no setting changes."""
_TRIES = 3
_LONGEST, _SHORT = 36, "/tmp"  # bytes of the folder that Ray's sockets are below, and a short one
_LEAST = 32 << 20  # bytes for Ray's logs
_KILL_SECONDS = 1.0  # for killed processes to disappear


class StartError(AwayError):
    """Ray did not start, which need not be an error of the input."""

    exit_code = 1


def temporary_folder() -> str:
    """Return the folder that a new Ray writes to."""
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


class PrivateRay:
    """A Ray that starts in a process of its own, which ends with this one, even where this one is killed.

    Args:
        cpus: its number of cores; that of this machine where None.
        dashboard: whether it has one, which takes seconds to start.
    """

    def __init__(self, *, cpus: int | None, dashboard: bool) -> None:
        self._options = {"num_cpus": cpus, "include_dashboard": dashboard, "dashboard_host": "127.0.0.1"}
        self._begin()

    def _begin(self) -> None:
        folder = temporary_folder()
        if len(os.fsencode(folder)) > _LONGEST:
            why = f"the path of a socket has at most 107 bytes, and {folder} is too long"
            print(f"note: Ray's files are in {_SHORT}: {why}", file=sys.stderr)
            folder = _SHORT
        if (free := free_bytes(Path(folder))) < _LEAST:
            raise StartError(
                f"Ray cannot start: {folder} has {free:,} bytes free and needs {_LEAST:,}; make room, or set "
                "RAY_TMPDIR to a folder with more"
            )
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), json.dumps(self._options)],
            env={**ON_ONE_MACHINE, **os.environ, **ON_LOOPBACK, **_IDLE, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            start_new_session=True,  # Ctrl-C is for this process
        )

    @cached_property
    def address(self) -> str:
        """Its address, once it has started; one that was too slow is started again.

        Raises:
            StartError: it did not start; the message has the end of its output.
        """
        for more in reversed(range(_TRIES)):
            assert self._process.stdout is not None
            with waiting("Ray to start on this machine"):
                address = self._process.stdout.readline().decode().strip()
            if address:
                return address
            output = self._output_end()
            if _TOO_SLOW not in output:
                raise StartError(f"Ray did not start; its output ends with:\n{output}")
            if more:
                print("note: Ray took too long to start, and is started again", file=sys.stderr)
                self.end()
                self._begin()
        raise StartError(
            f"Ray took too long to start, {_TRIES} times: {os.getloadavg()[0]:.0f} processes want the "
            f"{os.cpu_count()} cores of this machine. Try again when it has less to do, or use a Ray that is running: "
            "start it with `ray start --head` and set RAY_ADDRESS=127.0.0.1:6379"
        )

    def _output_end(self) -> str:
        self._process.wait()
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2000:]

    def end(self) -> None:
        """Kill it with all its processes."""
        end(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._output):
            if stream is not None:
                stream.close()


def end(process: subprocess.Popen) -> None:
    """Kill a process and all that it started."""
    started = started_by(process.pid)
    process.send_signal(signal.SIGSTOP)  # so that it starts no more
    kill([*started, *started_by(process.pid)])
    process.kill()
    process.wait()
    wait_for(started, seconds=_KILL_SECONDS)


def started_by(process: int) -> list[Any]:
    """Return all descendants of a process as psutil's objects, which tell apart processes of one id."""
    try:
        return psutil().Process(process).children(recursive=True)
    except psutil().NoSuchProcess:
        return []


def wait_for(processes: Sequence[Any], *, seconds: float) -> list[Any]:
    """Wait for processes to end, and return those that have not."""
    return psutil().wait_procs(processes, timeout=seconds)[1]


def kill(processes: Sequence[Any]) -> None:
    """End processes; those that have ended are no error."""
    for process in processes:
        with suppress(psutil().NoSuchProcess):
            process.kill()
