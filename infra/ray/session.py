"""Ray sessions, which never join a stray cluster, and the resources of the workers in them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from polypool.infra.errors import AwayError, InputError
from polypool.infra.process.output import JSON, mode
from polypool.infra.process.progress import say, waiting
from polypool.infra.process.stopping import cleanup_on_exit, handlers_restored, raise_stopped
from polypool.infra.ray.internals import (
    mute_workers,
    on_loopback,
    reload_settings,
    shorten_daemon_errors,
)
from polypool.infra.ray.private import ON_ONE_MACHINE, PrivateRay, temporary_folder

_SLOW_DASHBOARD = "Failed to query Ray Train Controller actor state"
"""Logged by Ray Train's cleaner every second until the dashboard has started, up to a minute."""
EVERYWHERE = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": _SLOW_DASHBOARD,
    "RAY_COLOR_PREFIX": "0",  # colours would come out as text (polypool.infra.process.terminal)
}
"""Default settings of Ray."""
ONCE_EACH = {"RAY_DEDUP_LOGS": "0"}
"""With which Ray prints every line of its workers as it is."""
_PATIENCE, _NO_PATIENCE = 30.0, 0.5  # seconds for Ray to be left
_WORDS = 100  # characters of a job's command
_LOOKS = 10.0, 30.0  # seconds until the first look for who holds the cores, and between two


@dataclass(frozen=True, kw_only=True)
class Session:
    """An open session.

    Attributes:
        private: whether it belongs to this process, on this machine.
        shared: whether it may outlive a run in it, which then has to free its cores even when killed.
    """

    private: bool
    shared: bool


def on_cluster() -> bool:
    """Whether RAY_ADDRESS names a cluster, as it does in a Ray job."""
    return os.environ.get("RAY_ADDRESS", "local") != "local"


_begun: list[tuple[PrivateRay, bool]] = []
_open: list[Session] = []


@contextmanager
def ray_beside(*, cpus: int | None = None, shared: bool = False) -> Iterator[None]:
    """Start a private Ray in the background for the sessions inside, and end it with all its processes.

    Does nothing where a Ray is running in this process or RAY_ADDRESS names one.

    Args:
        cpus: its number of cores; that of this machine where None.
        shared: as of `Session`.
    """
    running = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    if _begun or running or on_cluster():
        yield
        return
    if running_here := _cluster_of_this_machine():
        which = f"a Ray runs at {running_here}; RAY_ADDRESS={running_here} makes a command use it"
        print(f"note: {which}, and this one starts its own", file=sys.stderr)
    _default({**EVERYWHERE, **ON_ONE_MACHINE})
    # Ray Train asks the dashboard how the actors of shared sessions are
    private = PrivateRay(cpus=cpus, dashboard=shared)
    _begun.append((private, shared))
    try:
        with cleanup_on_exit(private.end):
            yield
    finally:
        _begun.clear()
        with cleanup_on_exit(private.end):
            private.end()


@contextmanager
def ray_session(*, cpus: int | None = None, shared: bool = False) -> Iterator[Session]:
    """Connect to the cluster that RAY_ADDRESS names (a Ray job has one), or to a private one on this machine.

    Inside another session, that one is used and left open. A private one is that of an enclosing `ray_beside`.

    Args:
        cpus: as of `ray_beside`.
        shared: whether several runs share it.

    Raises:
        InputError: RAY_ADDRESS names a job server.
        AwayError: no cluster answers there.
    """
    _default(EVERYWHERE | (ONCE_EACH if mode() == JSON else {}))
    import ray

    if ray.is_initialized():
        yield _open[-1] if _open else Session(private=False, shared=True)
        return
    address = os.environ.get("RAY_ADDRESS", "local")
    if address.startswith("http"):
        raise InputError(
            f"RAY_ADDRESS={address} is a job server: start this command through it with `ray job submit "
            "--working-dir . -- python -m ...`, or unset RAY_ADDRESS to use this machine alone"
        )
    if ":" in address and not _answers(address):
        raise AwayError(f"no Ray cluster answers at RAY_ADDRESS={address}; start it, or unset RAY_ADDRESS")
    with ray_beside(cpus=cpus, shared=shared):
        reach: AbstractContextManager[None] = nullcontext()
        if private := address == "local":
            begun, shared = _begun[0]
            address, reach = begun.address, on_loopback()
            reload_settings()  # Ray may have been imported before its token was set
        with reach, _connected(address):
            _open.append(Session(private=private, shared=shared))
            try:
                yield _open[-1]
            finally:
                _open.pop()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster, and leave it at the end; quickly after Ctrl-C."""
    import ray

    shorten_daemon_errors()
    try:
        with waiting(f"Ray at {address} to answer", after=5.0), handlers_restored():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True)
    except ConnectionError as error:
        raise AwayError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
    except SystemExit:  # Ray's reaction to SIGTERM while it connects
        raise_stopped(signal.SIGTERM)
    patience = _PATIENCE
    try:
        yield
    except KeyboardInterrupt:
        patience = _NO_PATIENCE
        mute_workers()
        raise
    finally:
        leaving = threading.Thread(target=ray.shutdown, daemon=True)  # Ray's processes may hang
        leaving.start()
        leaving.join(patience)


def _default(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def cores(kind: str = "CPU") -> int:
    """Return the number of cores, or of another resource, of the open session's cluster."""
    import ray

    return int(ray.cluster_resources().get(kind, 0))


def local_cores() -> int:
    """Return the number of cores that this process may use, as a private session does."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def waiting_for_cores(cores: int, *, session: Session) -> Iterator[None]:
    """Print which jobs hold the cores that the work inside waits for, until it has some, every half a minute.

    Args:
        cores: without which it does not begin.
        session: the open one; where it is private nobody else has cores.
    """
    over = threading.Event()

    def tell() -> None:
        started, pause = time.monotonic(), _LOOKS[0]
        while not over.wait(pause):
            pause = _LOOKS[1]
            with suppress(Exception):  # a cluster without a dashboard, or one that ends
                if line := _cores_held(cores):
                    say(line, what="cores", seconds=time.monotonic() - started)
                else:
                    return

    if not session.private:
        threading.Thread(target=tell, daemon=True, name="cores").start()
    try:
        yield
    finally:
        over.set()


def _cores_held(cores: int) -> str:
    """Return who holds the cores that this job lacks; empty where it has some, or enough are free."""
    import ray
    from ray.util.state import list_actors, list_jobs, list_placement_groups

    held = Counter[str]()
    for group in list_placement_groups(detail=True, filters=[("state", "=", "CREATED")]):
        held[group.creator_job_id] += sum(
            each["unit_resources"].get("CPU", 0) for each in group.bundles or ()
        )
    for actor in list_actors(detail=True, filters=[("state", "=", "ALIVE")]):
        if not actor.placement_group_id:
            held[actor.job_id] += (actor.required_resources or {}).get("CPU", 0)
    free = int(ray.available_resources().get("CPU", 0))
    if held[ray.get_runtime_context().get_job_id()] or free >= cores:
        return ""
    named = {job.job_id: job for job in list_jobs()}
    lines = []
    for id, count in held.most_common():
        if count and (job := named.get(id)) is not None:
            stop = f", `ray job stop {job.submission_id}` ends it" if job.submission_id else ""
            words = shorten(job.entrypoint or "a driver", _WORDS, placeholder=" ...")
            lines.append(f"{count:.0f} are held by `{words}` (job {job.submission_id or id}{stop})")
    return f"waiting for {cores} cores, of which {free} are free; {'; '.join(lines) or 'other work holds the others'}"


def _cluster_of_this_machine() -> str:
    """Return the address of a cluster that `ray start` started here; empty where none answers."""
    note = Path(temporary_folder()) / "ray" / "ray_current_cluster"
    try:
        address = note.read_text().strip()
    except OSError:
        return ""
    return address if _answers(address) else ""


def _answers(address: str) -> bool:
    """Whether a server listens at `[ray://]host:port`; Ray itself would wait for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of each worker of a run: cores, and whether it has a GPU."""

    cpus: int
    gpu: bool

    @classmethod
    def plan(cls, workers: int, *, fewest: int = 0, cpus: int) -> Resources:
        """Share the cluster among the workers: a GPU each where there are enough, and up to `cpus` cores.

        Args:
            workers: their largest number.
            fewest: their smallest number; 0 for all.
            cpus: cores that each wants.

        Raises:
            AwayError: the cluster has fewer cores than workers.
        """
        import ray

        has = ray.cluster_resources()
        cores = int(has.get("CPU", 0))
        fewest = fewest or workers
        if cores < fewest:
            raise AwayError(
                f"{fewest} workers need as many cores, and the cluster has {cores}; use fewer (--workers)"
            )
        now = min(workers, cores)
        return cls(cpus=max(1, min(cpus, cores // now)), gpu=has.get("GPU", 0) >= fewest)
