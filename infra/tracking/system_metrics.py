"""What the machine does while a run lasts: processors, memory, disk, network and GPUs, as MLflow measures them.

MLflow's own monitor sends numbers itself, asks the server about the run each time, and ends where that does not answer.
Here its measurements go the way of all others of a run, so that nothing waits for a server and none is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from infra.errors import InputError

ASKED = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
"""The variable of MLflow's that asks for it; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL says every how many seconds."""
_INTERVAL = 10.0


@contextmanager
def system_metrics(
    log: Callable[[Mapping[str, float], int], object], *, since: Callable[[], float]
) -> Iterator[None]:
    """Log measurements of this machine, under `system/`, while what is inside lasts, where the environment asks for it.

    Args:
        log: takes numbers and their step, the seconds since the run began, which grow over restarts, too.
        since: returns when the run began, in seconds since 1970; asked where it is needed.

    Raises:
        InputError: a variable that is none, or what measures is not installed.
    """
    from mlflow import environment_variables as variables

    try:
        wanted = variables.MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get()
        interval = variables.MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or _INTERVAL
    except ValueError as error:
        raise InputError(f"MLflow's variables for system metrics: {error}") from error
    if not wanted:
        yield
        return
    monitors, ended, began = _monitors(), threading.Event(), since()

    def measure() -> None:
        last = False
        while not last:
            last = ended.wait(interval)
            numbers = {f"system/{name}": x for of in monitors for name, x in _measured(of).items()}
            try:
                log(numbers, int(time.time() - began))
            except OSError:  # the disk is full, which the run itself will say
                return

    thread = threading.Thread(target=measure, name="system metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _monitors() -> list[Any]:
    """Return MLflow's monitors of what this machine has."""
    try:
        with suppress(ImportError):
            import ray  # noqa: F401 (has a psutil of its own, for who imports it)
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
    except ImportError as error:
        raise InputError(f"{ASKED} needs psutil: pip install 'polypool[system-metrics]' ({error})") from error
    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(Exception):  # no GPU of NVIDIA's, or no nvidia-ml-py
        monitors.append(GPUMonitor())
    for monitor in monitors:
        _measured(monitor)  # some count from the last time on
    return monitors


def _measured(monitor: Any) -> dict[str, float]:
    monitor.collect_metrics()
    numbers = dict(monitor.aggregate_metrics())
    monitor.clear_metrics()
    return numbers
