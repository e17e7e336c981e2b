"""The end of what Ray started on this machine: within seconds, whatever its processes are doing."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from infra.process.stopping import at_once_too

_PATIENCE, _NO_PATIENCE = 30.0, 0.5


@contextmanager
def ending_all(start: Callable[[], None]) -> Iterator[None]:
    """Call what starts Ray, and end Ray after what is inside with every process of it; quickly after Ctrl-C."""
    me, seconds = os.getpid(), _PATIENCE
    others, ours = set(started_by(me)), None

    def of_ray() -> list[Any]:
        roots = [each for each in started_by(me) if each not in others] if ours is None else ours
        return [*roots, *(process for each in roots for process in started_by(each.pid))]

    try:
        with at_once_too(lambda: kill(of_ray(), after=0.0)):
            start()
            ours = of_ray()
            yield
    except KeyboardInterrupt:
        seconds = _NO_PATIENCE
        _be_quiet()
        raise
    finally:
        left = of_ray()
        with at_once_too(lambda: kill(left, after=0.0)):
            leaving = _leave_ray(seconds)
            kill(left, after=0.3)
            leaving.join(_PATIENCE)  # nobody is left for it to wait for


def _be_quiet() -> None:
    """Show no more of what Ray's processes say: some complain that others are gone."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher

    # as ray.shutdown does, a second later
    global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")


def _leave_ray(seconds: float) -> threading.Thread:
    """Shut Ray down, but wait for it no longer than some seconds: it asks processes that may hang."""
    import ray

    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(seconds)
    return leaving


def started_by(process: int) -> list[Any]:
    """Return the processes that one has started, and theirs, as psutil has them: an id used again is another."""
    psutil = _psutil()
    try:
        return psutil.Process(process).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(processes: list[Any], *, after: float) -> None:
    """Kill those processes of `started_by` that have not ended by themselves after some seconds."""
    psutil = _psutil()
    for process in psutil.wait_procs(processes, timeout=after)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _psutil() -> Any:
    """Return psutil, which Ray brings and has importable."""
    import ray  # noqa: F401

    return importlib.import_module("psutil")
