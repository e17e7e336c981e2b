"""Kinds of faults, and the command that a user types after each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from mlflow_server import Server

from chaos.cluster import Cluster, Job


@dataclass(frozen=True, kw_only=True)
class Place:
    """What can go wrong: the cluster, the run on it, the server that records it; and what decides how."""

    cluster: Cluster
    job: Job
    server: Server
    random: Random


def worker_killed(at: Place) -> str:
    """Kill a worker."""
    at.random.choice(_workers(at)).kill()
    return ""


def driver_killed(at: Place) -> str:
    """Kill the driver."""
    os.kill(at.job.driver(), signal.SIGKILL)
    return ""


def node_lost(at: Place) -> str:
    """Lose a node; another one comes."""
    at.cluster.lose_node()
    at.cluster.add_node()
    return ""


def job_stopped(at: Place) -> str:
    """Stop the job, and submit the same command again."""
    at.job.stop()
    at.job.wait_for(lambda: False, "the end of a job that was stopped")
    at.job.submit()
    return "the same command again"


def mlflow_away(at: Place) -> str:
    """Kill the server of MLflow, and start it again after some seconds."""
    at.server.kill()
    time.sleep(at.random.uniform(2, 8))
    at.server.start()
    return ""


def worker_halted(at: Place) -> str:
    """Halt a worker for some seconds."""
    worker = at.random.choice(_workers(at))
    worker.suspend()
    time.sleep(at.random.uniform(2, 8))
    worker.resume()
    return ""


def _workers(at: Place) -> Sequence:
    """Return the workers, of which there are none where the run has just ended."""
    workers = at.cluster.workers()
    if not workers:
        raise NoneThereError
    return workers


class NoneThereError(RuntimeError):
    """There is nothing that the fault could meet."""


KINDS: dict[str, Callable[[Place], str]] = {
    "a worker killed": worker_killed,
    "the driver killed": driver_killed,
    "a node lost, another comes": node_lost,
    "the job stopped (SIGTERM), submitted again": job_stopped,
    "MLflow's server away for 2 to 8 seconds": mlflow_away,
    "a worker halted for 2 to 8 seconds": worker_halted,
}
"""Each does its harm, and returns what a person has typed; empty where that is nothing."""


def meet(kind: str, at: Place) -> str | None:
    """Let a fault happen; return what was typed, None where nothing was there any more."""
    with suppress(NoneThereError, ProcessLookupError):
        return KINDS[kind](at)
    return None
