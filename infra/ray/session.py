"""A Ray session that never joins a stray cluster, and what of it each worker of a run gets."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from infra.errors import InputError
from infra.process.environment import environment
from infra.process.stopping import end, kept
from infra.ray.ending import ending_all
from infra.ray.head import ON_ONE_MACHINE, free_ports

_SLOW_DASHBOARD = "Failed to query Ray Train Controller actor state"
"""What Ray Train's cleaner says every second until the dashboard has started, which may take a minute."""
EVERYWHERE = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": _SLOW_DASHBOARD,
    "RAY_COLOR_PREFIX": "0",  # colours would come out as text (infra.process.terminal)
}
"""What Ray is told, unless the environment says otherwise."""


def _default(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        os.environ.setdefault(name, value)


@contextmanager
def ray_session(*, cpus: int | None = None) -> Iterator[None]:
    """Use the cluster that RAY_ADDRESS names (a Ray job has one), or a private one on this machine, then leave it.

    Inside another session, that one is used and left open.
    """
    _default(EVERYWHERE)
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "local")
    if address.startswith("http"):
        raise InputError(
            f"RAY_ADDRESS={address} is a job server: start this command through it with `ray job submit "
            "--working-dir . -- python -m ...`, or unset RAY_ADDRESS to use this machine alone"
        )
    if ":" in address and not _answers(address):
        raise InputError(f"no Ray cluster answers at RAY_ADDRESS={address}; start it, or unset RAY_ADDRESS")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
    if address == "local":
        _default(ON_ONE_MACHINE)
        # Ray Train asks the dashboard how its actors are, and complains every second where there is none
        options |= {"include_dashboard": True, "dashboard_host": "127.0.0.1", "num_cpus": cpus}

    def start() -> None:
        try:
            with kept(), _known_address() if address == "local" else nullcontext():
                ray.init(address=address, **options)
        except ConnectionError as error:
            raise InputError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
        except SystemExit:  # what Ray makes of SIGTERM while it starts
            end(signal.SIGTERM)

    if address == "local":
        with ending_all(start):
            yield
        return
    start()
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _known_address() -> Iterator[None]:
    """Let the processes of a private session inherit its address.

    Ray Train frees the cores of a run that was ended by force only if it finds the session, and where several run on a
    machine it finds none by itself.
    """
    from ray.util import get_node_ip_address

    (port,) = free_ports(1)
    ours = {"RAY_GCS_SERVER_PORT": str(port), "RAY_ADDRESS": f"{get_node_ip_address()}:{port}"}
    with environment(ours):
        yield


def cores(kind: str = "CPU") -> int:
    """Return how many cores, or whatever else `kind` names, the cluster of the open session has."""
    import ray

    return int(ray.cluster_resources().get(kind, 0))


def local_cores() -> int:
    """Return how many cores this process may use, which are those that a private session has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    def plan(cls, workers: int, *, cpus: int) -> Resources:
        """Share the cluster among the workers: a GPU each where there are enough, and up to `cpus` cores.

        Raises:
            InputError: the cluster has fewer cores than workers.
        """
        import ray

        has = ray.cluster_resources()
        cores = int(has.get("CPU", 0))
        if cores < workers:
            raise InputError(
                f"{workers} workers need as many cores, and the cluster has {cores}; use fewer (--workers)"
            )
        return cls(cpus=max(1, min(cpus, cores // workers)), gpu=has.get("GPU", 0) >= workers)
