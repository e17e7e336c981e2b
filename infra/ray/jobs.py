"""Ray jobs: submitted to a job server, followed, and stopped with the caller; a private server on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from polypool.infra.errors import InputError
from polypool.infra.ray.internals import most_package_bytes, visit_package
from polypool.infra.ray.private import ON_LOOPBACK, ON_ONE_MACHINE, end

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_START_SECONDS = 120
_PORTS = (
    "--port",
    "--dashboard-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--metrics-export-port",
    "--ray-client-server-port",
)


@dataclass(frozen=True, kw_only=True)
class JobServer:
    """A server that takes Ray jobs.

    Attributes:
        address: of a head's dashboard (`http://host:8265`), or of its cluster (`ray://host:10001`, `host:6379`).
        token: of its clients; where empty, that of Ray's own settings (RAY_AUTH_TOKEN).
        cluster: the address at which more nodes join; empty where unknown.
        environment: variables with which another process of this machine works on the cluster; empty where unknown.
    """

    address: str
    token: str = field(default="", repr=False)
    cluster: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> JobSubmissionClient:
        """Return a connected client.

        Raises:
            ConnectionError: the server does not answer.
        """
        from ray.job_submission import JobSubmissionClient

        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.ERROR)  # it logs each file that is not sent, and each connection's end
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        return JobSubmissionClient(self.address, headers=headers)

    async def run(
        self, words: Sequence[str], *, folder: Path, env: Mapping[str, str], show: Callable[[str], None]
    ) -> None:
        """Run a command as a job and wait for its end; cancelling the task stops the job.

        Args:
            words: of the command; `python` is the first on the head's PATH.
            folder: the job's working directory, without the files that `.rayignore` names.
            env: environment variables of the job, added to the head's.
            show: called with each line of the job's output.

        Raises:
            InputError: the folder is too large, the server does not answer, or the job did not succeed.
        """
        from ray.job_submission import JobStatus

        refuse_large(folder)
        command = shlex.join(words)
        try:
            client = self.client()
        except ConnectionError as error:
            raise InputError(f"no job server answers at {self.address}; start the cluster first") from error
        job = client.submit_job(
            entrypoint=command, runtime_env={"working_dir": str(folder), "env_vars": dict(env)}
        )
        rest = ""
        try:
            async for text in client.tail_job_logs(job):
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    show(line)
        except BaseException:
            client.stop_job(job)
            raise
        if rest:
            show(rest)
        details = client.get_job_info(job)
        assert details is not None
        if details.status != JobStatus.SUCCEEDED:
            why = (details.message or "").partition(", last available logs")[0]
            raise InputError(
                f"the Ray job `{command}` ended as {details.status} ({why}); its output above says more"
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
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
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
    token, cluster = secrets.token_hex(32), f"127.0.0.1:{ports['--port']}"
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} | (ON_LOOPBACK if alone else {})
    server = JobServer(
        address=f"http://127.0.0.1:{ports['--dashboard-port']}",
        token=token,
        cluster=cluster,
        environment={"RAY_ADDRESS": cluster, **env},
    )
    log = folder / "head.log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            command,
            env={**ON_ONE_MACHINE, **os.environ, **env, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_for(server, head, log)
        yield server
    finally:
        end(head)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: JobServer, head: subprocess.Popen, log: Path) -> None:
    limit = time.monotonic() + _START_SECONDS
    while time.monotonic() < limit and head.poll() is None:
        try:
            server.client()
            return
        except ConnectionError:
            time.sleep(0.3)
    raise RuntimeError(
        f"the Ray head did not answer at {server.address}; its log ends with:\n{log.read_text()[-2000:]}"
    )


def refuse_large(folder: Path) -> None:
    """Refuse a working directory that the job server would reject after the upload.

    Raises:
        InputError: it is too large; the message names its largest parts.
    """
    sizes: Counter[str] = Counter()

    def add(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(folder).parts[0]] += path.stat().st_size

    visit_package(folder, add)
    size, most = sum(sizes.values()), most_package_bytes()
    if size < most:
        return
    largest = "".join(f"\n  {bytes / 2**20:8,.1f} MiB  {name}" for name, bytes in sizes.most_common(5))
    raise InputError(
        f"{folder}: as the working directory of a Ray job it has {size / 2**20:,.0f} MiB, and a job server takes "
        f"{most / 2**20:,.0f} MiB. Name what the job does not need in {folder / '.rayignore'}, a pattern a line, as in "
        f".gitignore; what is largest:{largest}"
    )
