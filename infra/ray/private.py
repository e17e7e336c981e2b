"""A Ray of this process's own on this machine, which begins beside what this process does meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path

from infra.errors import AwayError
from infra.ray.ending import kill, started_by, wait_for

ON_ONE_MACHINE = {
    "RAY_AUTH_MODE": "token",  # the one in the user's home, which Ray makes: others on this machine have none
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # by default a run waits up to two seconds to begin, and to end
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process of its own, for clusters whose machines are taken away
    "RAY_worker_niceness": "0",  # by default 15: whatever else runs on the machine would go first
}
"""What Ray is told where it runs on this machine alone, unless the environment says otherwise."""
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""What makes a Ray listen on 127.0.0.1 and nowhere else, as it does by default where no other machine can join it."""
_IDLE = {"RAY_prestart_worker_first_driver": "0"}
"""What the process that has a private Ray is told besides: it has no work, for which Ray would start workers."""
_PROGRAM = Path(__file__).with_name("private_process.py")
_TOO_SLOW = "timed out during startup"
"""What Ray says when it gives up, after a time that no setting changes and a busy machine may take."""
_TRIES = 3
_TO_DIE = 1.0  # seconds that the system may take to end what was killed


class StartError(AwayError):
    """Ray did not start, for which no input need be at fault."""

    exit_code = 1


class PrivateRay:
    """A Ray that is being started, in a process which ends with this one, whatever becomes of it.

    Args:
        cpus: how many cores it has; those of this machine where None.
        dashboard: whether it has what answers questions about its state, which takes seconds to start.
    """

    def __init__(self, *, cpus: int | None, dashboard: bool) -> None:
        self._options = {"num_cpus": cpus, "include_dashboard": dashboard, "dashboard_host": "127.0.0.1"}
        self._begin()

    def _begin(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), json.dumps(self._options)],
            env={**ON_ONE_MACHINE, **os.environ, **ON_LOOPBACK, **_IDLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C is for this process
        )

    @cached_property
    def address(self) -> str:
        """Where it is, once it has begun; one that was too slow to begin is started again.

        Raises:
            StartError: it did not begin; the end of what it said is in the message.
        """
        for more in reversed(range(_TRIES)):
            if address := self._process.stdout.readline().decode().strip():
                return address
            said = self._last_words()
            if _TOO_SLOW not in said:
                raise StartError(f"Ray did not start; it said last:\n{said}")
            if more:
                print("note: Ray took too long to start, and is started again", file=sys.stderr)
                self.end()
                self._begin()
        raise StartError(
            f"Ray took too long to start, {_TRIES} times: {os.getloadavg()[0]:.0f} processes want the "
            f"{os.cpu_count()} cores of this machine. Try again when it has less to do, or use a Ray that is running: "
            "start it with `ray start --head` and set RAY_ADDRESS=127.0.0.1:6379"
        )

    def _last_words(self) -> str:
        self._process.wait()
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-2000:]

    def end(self) -> None:
        """End it with all that it has started, there and then: what it holds is gone with its owner."""
        family = started_by(self._process.pid)
        self._process.send_signal(signal.SIGSTOP)  # it may be about to start more
        kill([*family, *started_by(self._process.pid)])
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            stream.close()
        wait_for(family, seconds=_TO_DIE)
