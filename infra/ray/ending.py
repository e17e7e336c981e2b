"""The end of what Ray started on this machine: within seconds, whatever its processes are doing."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def leave_ray(*, seconds: float) -> None:
    """Shut Ray down, but wait for it no longer than some seconds: it asks processes that may hang."""
    import ray

    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(seconds)


def be_quiet() -> None:
    """Show no more of what Ray's processes say: some complain that others are gone."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher

    # as ray.shutdown does, a second later
    global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")


def started_by(process: int) -> list[Any]:
    """Return the processes that one has started, and theirs, as psutil has them: an id used again is another."""
    psutil = _psutil()
    try:
        return psutil.Process(process).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_for(processes: Sequence[Any], *, seconds: float) -> list[Any]:
    """Wait for processes of `started_by` to end, and return those that have not within some seconds."""
    return _psutil().wait_procs(processes, timeout=seconds)[1]


def kill(processes: Sequence[Any]) -> None:
    """Kill processes of `started_by`."""
    for process in processes:
        with suppress(_psutil().NoSuchProcess):
            process.kill()


def _psutil() -> Any:
    """Return psutil: the one that Ray brings, whose own import would take a while in which nothing ends."""
    brought = str(Path(find_spec("ray").origin).with_name("thirdparty_files"))
    sys.path.insert(0, brought)
    try:
        return importlib.import_module("psutil")
    finally:
        sys.path.remove(brought)
