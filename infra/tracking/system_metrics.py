"""Measurements of the machine during a run: processors, memory, disk, network and GPUs, by MLflow's monitors.

MLflow's own thread sends numbers itself, asks the server about the run each time, and ends if that does not answer.
Here they are logged like all others of a run, so that nothing waits for a server and none is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from polypool.infra.errors import InputError
from polypool.infra.tracking.mlflow_private import measured, system_monitors

_INTERVAL = 10.0


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
        interval = variables.MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or _INTERVAL
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
