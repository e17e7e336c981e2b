"""MLflow's parts without a promise of stability: its limits, names of tags, rules for names, system monitors.

Its own thread of system metrics sends numbers itself, asks the server about the run each time, and ends if that does
not answer. Here they are logged like all others of a run, so that nothing waits for a server and none is lost.

`tests/infra/tracking/test_mlflow_private.py` names those that a version of MLflow has changed. The tables of its SQLite
files are in `run_records`, which does without them if they change.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.extras import needed

DIGEST_LENGTH = 36
PARAM_LENGTH = 6000
PARAMS_AT_ONCE = 100
DATASET_CONTEXT = "mlflow.data.context"
MODEL_VERSIONS = "mlflow.modelVersions"
ALREADY_EXISTS = "RESOURCE_ALREADY_EXISTS"
"""Code of the error for a name that is taken."""
_ALIAS, _RESERVED = re.compile(r"[\w-]+"), re.compile(r"latest|v\d+", re.IGNORECASE)


def check_names(name: str, alias: str) -> None:
    """Check the name and the alias of a registered model before anything is written; empty for none.

    Raises:
        InputError: an alias without a name, or a name or an alias that MLflow does not allow.
    """
    if alias and not name:
        raise InputError(f"--alias {alias} needs a registered model; name it by --registered-name")
    if name and (not name.strip() or "/" in name or ":" in name):
        raise InputError(f"--registered-name {name!r}: a model's name in MLflow has no / and no :")
    if alias and (not _ALIAS.fullmatch(alias) or _RESERVED.fullmatch(alias)):
        raise InputError(
            f"--alias {alias!r}: MLflow takes letters, digits, _ and -, and neither latest nor a version such as v1"
        )


def system_monitors() -> list[Any]:
    """Return MLflow's monitors of the processors, disk, network and GPUs of this machine."""
    with needed("system-metrics"):
        with suppress(ImportError):
            import ray  # noqa: F401 (brings a psutil of its own)
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(Exception):  # no GPU of NVIDIA's, or no nvidia-ml-py
        monitors.append(GPUMonitor())
    return monitors


def measured(monitor: Any) -> dict[str, float]:
    """Return what a monitor measures now."""
    monitor.collect_metrics()
    numbers = dict(monitor.aggregate_metrics())
    monitor.clear_metrics()
    return numbers


@contextmanager
def system_metrics(
    log: Callable[[Mapping[str, float], int], object], *, since: Callable[[], float]
) -> Iterator[None]:
    """Log measurements of this machine under `system/` inside the block, if the environment requests it.

    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING requests it, MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL is in seconds.

    Args:
        log: takes numbers and their step, the seconds since the run began, which grow over restarts, too.
        since: returns when the run began, in seconds since 1970; called only if needed.

    Raises:
        InputError: an invalid variable, or the packages that measure are not installed.
    """
    from mlflow import environment_variables as variables

    try:
        wanted = variables.MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get()
        interval = variables.MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or 10.0
    except ValueError as error:
        raise InputError(f"MLflow's variables for system metrics: {error}") from error
    if not wanted:
        yield
        return
    monitors, ended, began = system_monitors(), threading.Event(), since()
    for monitor in monitors:
        measured(monitor)  # some count from the last time on

    def measure() -> None:
        last = False
        while not last:
            last = ended.wait(interval)
            numbers = {f"system/{name}": x for monitor in monitors for name, x in measured(monitor).items()}
            try:
                log(numbers, int(time.time() - began))
            except OSError:  # the disk is full, which the run itself will report
                return

    thread = threading.Thread(target=measure, name="system metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
