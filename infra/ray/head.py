"""A private Ray head on this machine, with a job server."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polypool.infra.ray.jobs import JobServer
from polypool.infra.ray.private import ON_LOOPBACK, ON_ONE_MACHINE, kill, started_by, wait_for

START_SECONDS = 120
_END_SECONDS = 3
PORTS = (
    "--port",
    "--dashboard-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--metrics-export-port",
    "--ray-client-server-port",
)


def free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback address."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


@contextmanager
def private_head(*, cpus: int | None = None, alone: bool = True) -> Iterator[JobServer]:
    """Start a head with its own ports, folder and token, and end it with all its processes.

    Args:
        cpus: its number of cores; that of this machine where None.
        alone: whether it listens on 127.0.0.1 alone, so that no other node can join.

    Raises:
        RuntimeError: it did not answer in time; the message has the end of its log.
    """
    folder = Path(tempfile.mkdtemp(prefix="pp-", dir="/tmp"))  # short: Ray puts sockets into it
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
    ]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--include-dashboard=true"]
    command += [f"--temp-dir={folder}", f"--num-cpus={cpus or os.cpu_count()}"]
    command += [f"{name}={port}" for name, port in ports.items()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # a job's `python` is the first on it
    server = JobServer(
        address=f"http://127.0.0.1:{ports['--dashboard-port']}",
        token=secrets.token_hex(32),
        cluster=f"127.0.0.1:{ports['--port']}",
    )
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": server.token, "PATH": path}
    env |= ON_LOOPBACK if alone else {}
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(
            command,
            env={**ON_ONE_MACHINE, **os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(server, head, folder / "head.log")
        yield server
    finally:
        _end(head)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: JobServer, head: subprocess.Popen, log: Path) -> None:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit and head.poll() is None:
        try:
            server.client()
            return
        except ConnectionError:
            time.sleep(0.3)
    raise RuntimeError(
        f"the Ray head did not answer at {server.address}; its log ends with:\n{log.read_text()[-2000:]}"
    )


def _end(head: subprocess.Popen) -> None:
    """Terminate the head, then kill the processes that are left of it."""
    started = started_by(head.pid)
    head.terminate()
    with suppress(subprocess.TimeoutExpired):
        head.wait(_END_SECONDS)
    kill(wait_for(started, seconds=0.1))
    head.kill()
    head.wait()
