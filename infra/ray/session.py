"""A Ray session that never joins a stray cluster, and what of it each worker of a run gets."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from infra.errors import AwayError, InputError
from infra.process.stopping import at_once_too, end, kept
from infra.ray.ending import be_quiet, leave_ray
from infra.ray.private import ON_ONE_MACHINE, PrivateRay

_SLOW_DASHBOARD = "Failed to query Ray Train Controller actor state"
"""What Ray Train's cleaner says every second until the dashboard has started, which may take a minute."""
EVERYWHERE = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": _SLOW_DASHBOARD,
    "RAY_COLOR_PREFIX": "0",  # colours would come out as text (infra.process.terminal)
}
"""What Ray is told, unless the environment says otherwise."""
_PATIENCE, _NO_PATIENCE = 30.0, 0.5  # seconds for Ray to be left


@dataclass(frozen=True, kw_only=True)
class Session:
    """An open session.

    Attributes:
        private: whether it is this process's own, on this machine.
        shared: whether it may outlive a run in it, so that what a run took has to be given back whatever becomes of it.
    """

    private: bool
    shared: bool


_begun: list[tuple[PrivateRay, bool]] = []
_open: list[Session] = []


@contextmanager
def ray_beside(*, cpus: int | None = None, shared: bool = False) -> Iterator[None]:
    """Let a private Ray begin beside what is inside, for the sessions in it, and end it with every process of it.

    Nothing begins where there is a Ray already, or RAY_ADDRESS names one.

    Args:
        cpus: how many cores it has; those of this machine where None.
        shared: as of `Session`.
    """
    running = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    if _begun or running or os.environ.get("RAY_ADDRESS", "local") != "local":
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
        with at_once_too(private.end):
            yield
    finally:
        _begun.clear()
        with at_once_too(private.end):
            private.end()


@contextmanager
def ray_session(*, cpus: int | None = None, shared: bool = False) -> Iterator[Session]:
    """Use the cluster that RAY_ADDRESS names (a Ray job has one), or a private one on this machine, then leave it.

    Inside another session, that one is used and left open. A private one is that of `ray_beside` where this is in one.

    Args:
        cpus: as of `ray_beside`.
        shared: whether several runs share it.

    Raises:
        InputError: RAY_ADDRESS names a job server.
        AwayError: no cluster answers there.
    """
    _default(EVERYWHERE)
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
            address, reach = begun.address, _on_loopback()
            _heed_environment()
        with reach, _connected(address):
            _open.append(Session(private=private, shared=shared))
            try:
                yield _open[-1]
            finally:
                _open.pop()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster, and leave it after what is inside; quickly after Ctrl-C."""
    import ray

    try:
        with kept():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True)
    except ConnectionError as error:
        raise AwayError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
    except SystemExit:  # what Ray makes of SIGTERM while it connects
        end(signal.SIGTERM)
    patience = _PATIENCE
    try:
        yield
    except KeyboardInterrupt:
        patience = _NO_PATIENCE
        be_quiet()
        raise
    finally:
        leave_ray(seconds=patience)


def _heed_environment() -> None:
    """Let Ray read its settings anew: it may have been imported before it was told of tokens."""
    from ray._raylet import Config

    Config.initialize("")


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray look for its parts on 127.0.0.1, where those of a private one listen (`ON_LOOPBACK`).

    Not by the environment: another session of this process may connect to a cluster.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _default(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def cores(kind: str = "CPU") -> int:
    """Return how many cores, or whatever else `kind` names, the cluster of the open session has."""
    import ray

    return int(ray.cluster_resources().get(kind, 0))


def local_cores() -> int:
    """Return how many cores this process may use, which are those that a private session has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cluster_of_this_machine() -> str:
    """Return where a cluster answers that `ray start` has begun here; empty where none does."""
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(place) / "ray" / "ray_current_cluster"
    try:
        address = note.read_text().strip()
    except OSError:
        return ""
    return address if _answers(address) else ""


def _answers(address: str) -> bool:
    """Whether anyone listens at `[ray://]host:port`; Ray itself would wait for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What each worker of a run gets.

    Attributes:
        cpus: cores.
        gpu: whether it has a GPU.
    """

    cpus: int
    gpu: bool

    @classmethod
    def plan(cls, workers: int, *, fewest: int = 0, cpus: int) -> Resources:
        """Share the cluster among the workers: a GPU each where there are enough, and up to `cpus` cores.

        Args:
            workers: how many there are at most.
            fewest: how many will do; 0 for all.
            cpus: the cores that each is to have.

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
