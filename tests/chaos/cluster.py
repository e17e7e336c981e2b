"""Two Ray nodes on this machine, a run that is a job on them, and their processes, which tests kill."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from places import ROOT

from polypool.infra.errors import InputError
from polypool.infra.lease.on_disk import NAME, holder_of
from polypool.infra.ray.jobs import JobServer, free_ports, private_head
from polypool.infra.ray.private import kill, started_by, wait_for
from polypool.infra.tracking.journal import JOURNAL
from polypool.pipelines.training.checkpoints.in_folder import listed
from polypool.pipelines.training.run_folder import OUTBOX, run_folder

WAIT_SECONDS = 300
_TRIES = 5
_PORTS = ("--dashboard-agent-listen-port", "--dashboard-agent-grpc-port", "--metrics-export-port")


def wait_until(there: Callable[[], Any], what: str) -> Any:
    """Return what is there, once it is.

    Raises:
        TimeoutError: it was not in time.
    """
    limit = time.monotonic() + WAIT_SECONDS
    while not (found := there()):
        if time.monotonic() > limit:
            raise TimeoutError(what)
        time.sleep(0.05)
    return found


class Cluster:
    """A head of one core, where jobs are driven, and another node of one core.

    Args:
        server: of the head.
    """

    def __init__(self, server: JobServer) -> None:
        self.server, self._node, self._folder = server, None, None

    def add_node(self) -> None:
        """Start the other node, and wait until it has joined; again where a busy machine was too slow for Ray.

        Raises:
            RuntimeError: it did not start.
        """
        for _ in range(_TRIES):
            if (said := self._start_node()) is None:
                return
            self.remove_node()
        raise RuntimeError(f"the second node did not start:\n{said}")

    def _start_node(self) -> str | None:
        """Start it; return the end of what it said where it did not start."""
        self._folder = tempfile.TemporaryDirectory(prefix="pp-", dir="/tmp", ignore_cleanup_errors=True)
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self._node = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")),
                "start",
                f"--address={self.server.cluster}",
                "--block",
            ]
            + ["--disable-usage-stats", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
            + [f"--temp-dir={self._folder.name}"]  # else both would unpack jobs' folders at one place
            + [f"{name}={port}" for name, port in ports.items()],
            env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.server.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        said = []
        for line in self._node.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                return None
        return "".join(said[-20:])

    def lose_node(self) -> None:
        """Kill the raylet of the other node, and then all that is left of it, as on a machine that is gone."""
        family = started_by(self._node.pid)
        (raylet,) = (each for each in family if each.name() == "raylet")
        raylet.kill()
        self.remove_node(family)

    def remove_node(self, family: list[Any] | None = None) -> None:
        """End the other node without a word."""
        if self._node is None:
            return
        family = started_by(self._node.pid) if family is None else family
        self._node.kill()
        kill(family)
        self._node.wait()
        self._node.stdout.close()
        self._node = None
        wait_for(family, seconds=5)
        self._folder.cleanup()

    def workers(self) -> list[Any]:
        """Return the processes that train, of both nodes, in the order of their ids."""
        found = [each for each in started_by(os.getpid()) if _title(each).startswith("ray::RayTrainWorker")]
        return sorted(found, key=lambda each: each.pid)


def _title(process: Any) -> str:
    from psutil import Error  # which `started_by` has imported

    try:
        return " ".join(process.cmdline())
    except Error:
        return ""


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """Start both nodes on ports and in a folder of their own, and end them, also on failure."""
    with private_head(cpus=1, alone=False) as server:
        cluster = Cluster(server)
        try:
            cluster.add_node()
            yield cluster
        finally:
            cluster.remove_node()


@dataclass(kw_only=True)
class Job:
    """A run that is trained as a Ray job.

    Attributes:
        cluster: that it is submitted to.
        words: of the command.
        home: of the project.
        env: environment variables of the job beside POLYPOOL_HOME.
        run_id: of the run, once it is known.
    """

    cluster: Cluster
    words: list[str]
    home: Path
    env: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""

    def __post_init__(self) -> None:
        self._client = self.cluster.server.client()
        self.submit()

    def submit(self) -> None:
        """Submit it, or the same again."""
        self._asked, self._ended = 0.0, False
        env = {"POLYPOOL_HOME": str(self.home), **self.env}
        self._id = self._client.submit_job(
            entrypoint=shlex.join(self.words), runtime_env={"working_dir": str(ROOT), "env_vars": env}
        )

    @property
    def folder(self) -> Path:
        """That of the run."""
        return run_folder(self.home, self.run_id)

    @property
    def state(self) -> str:
        """How it is, as Ray says."""
        return str(self._client.get_job_status(self._id))

    def log(self) -> str:
        """Return what it printed, and what Ray says of it."""
        return f"{self._client.get_job_logs(self._id)}\n{self._client.get_job_info(self._id).message}"

    def stop(self) -> None:
        """Ask it to end."""
        self._client.stop_job(self._id)

    def driver(self) -> int:
        """Return the process that drives the run, once there is one."""
        lease = self.folder / NAME
        return wait_until(lambda: holder_of(lease), f"a driver of run {self.run_id}").process

    def wait_for_checkpoint(self, after: str | None) -> str | None:
        """Return the name of the last checkpoint, once it is another; None where the job has ended before."""
        self.wait_for(lambda: self.checkpoint() not in (None, after), "a checkpoint")
        name = self.checkpoint()
        return name if name != after else None

    def checkpoint(self) -> str | None:
        """Return the name of the last checkpoint; None where there is none, or it is being noted."""
        with suppress(InputError):
            return listed(self.folder)
        return None

    def wait_for(self, there: Callable[[], bool], what: str) -> None:
        """Wait until something is there or the job has ended.

        Raises:
            TimeoutError: neither came.
        """
        wait_until(lambda: there() or self.ended, what)

    @property
    def ended(self) -> bool:
        """Whether it has ended, which is asked once a second."""
        if time.monotonic() > self._asked + 1:
            self._asked, self._ended = time.monotonic(), self.state not in ("PENDING", "RUNNING")
        return self._ended

    def steps(self) -> list[tuple[float, int]]:
        """Return when each step was logged, in seconds since 1970, and its number."""
        lines = (self.folder / OUTBOX / JOURNAL).read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return [(each["time"] / 1000, each["step"]) for each in entries if "train/loss" in each["values"]]
