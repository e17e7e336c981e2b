"""All private parts of Ray that are used, in one file.

`pyproject.toml` bounds Ray's version from above. `tests/infra/ray/test_internals.py` names each part and fails where a
new version lacks one. Imports are inside functions, or lazy: a session needs no Ray Train, whose import takes seconds.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
    from ray.train.v2._internal.execution.scaling_policy import (
        ElasticScalingPolicy,
        FixedScalingPolicy,
        NoopDecision,
        ScalingDecision,
    )

__all__ = [
    "DefaultFailurePolicy",
    "ElasticScalingPolicy",
    "FailureDecision",
    "FixedScalingPolicy",
    "NoopDecision",
    "ScalingDecision",
]

CONTROLLER_LOGGER = "ray.train.v2._internal.execution.controller.controller"
BACKEND_LOGGER = "ray.train.v2._internal.callbacks.backend_setup"
UTIL_LOGGER = "ray.train.v2._internal.util"
CONTEXT_LOGGER = "train/v2/_internal/execution/context.py"
"""Two loggers of the controller, and two of workers; the last is named by its file, here relative to Ray's folder."""
DATASETS, CLEANER = "DatasetsCallback", "PlacementGroupCleanerCallback"
"""Callbacks that each start a process: for Ray's data sets, and to free the cores of a run that is killed."""


def __getattr__(name: str) -> Any:
    """Import a policy of Ray Train when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "failure_handling" if "Failure" in name else "scaling_policy"
    return getattr(importlib.import_module(f"ray.train.v2._internal.execution.{room}"), name)


def checkpoint_listing(name: str) -> str:
    """Return the JSON with which Ray Train resumes from the checkpoint `name`."""
    from ray.train.v2._internal.execution.checkpoint import checkpoint_manager as ray

    result = ray._TrainingResultState(checkpoint_dir_name=name, metrics={})
    lists = (
        "pending_training_results",
        "pending_validation_specs",
        "validated_checkpoint_dir_names",
        "timed_out_validation_checkpoint_dir_names",
        "failed_validation_checkpoint_dir_names",
    )
    return ray._CheckpointManagerState(
        checkpoint_results=[result],
        checkpoint_report_indices=[0],
        latest_checkpoint_result=result,
        current_report_index=1,
        **{name: [] for name in lists},
    ).model_dump_json()


def reload_settings() -> None:
    """Read Ray's settings from the environment again, as they may have changed since its import."""
    vars(importlib.import_module("ray._raylet"))["Config"].initialize("")


@contextmanager
def on_loopback() -> Iterator[None]:
    """Connect to a cluster that listens on 127.0.0.1 alone.

    Not by an environment variable: another session of this process may connect elsewhere.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def serve_on_loopback() -> None:
    """Let the Ray Serve replica in this process listen on 127.0.0.1 alone, where all of its Ray does.

    To be called in its constructor: afterwards it opens a port on all addresses, which no setting of Ray changes.
    """
    from ray._private import ray_constants

    if not ray_constants.ENABLE_RAY_CLUSTER:
        replica = vars(importlib.import_module("ray.serve._private.replica"))
        add_port = replica["add_port_to_grpc_server"]
        replica["add_port_to_grpc_server"] = lambda server, at: add_port(
            server, at.replace("[::]", "127.0.0.1")
        )


def shorten_daemon_errors() -> None:
    """Print of errors of Ray's daemons the first line; their log files have the rest, such as a dump of their state."""
    worker = vars(importlib.import_module("ray._private.worker"))
    show = worker["print_to_stdstream"]
    if show.__module__ == __name__:
        return

    def show_short(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") == "raylet":
            data = data | {"lines": [text.strip().partition("\n")[0] for text in data["lines"]]}
        show(data, ignore_prefix)

    worker["print_to_stdstream"] = show_short


def mute_workers() -> None:
    """Print no more output of Ray's processes: at the end, some complain that others are gone."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher

    # as ray.shutdown does, a second later
    global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")


def most_package_bytes() -> int:
    """Return the size of a working directory that a job server refuses."""
    from ray._private import ray_constants

    return ray_constants.DASHBOARD_CLIENT_MAX_SIZE


def visit_package(folder: Path, visit: Callable[[Path], None]) -> None:
    """Call `visit` with each path that Ray would send of a working directory."""
    from ray._private.runtime_env.packaging import _dir_travel

    silent = logging.getLogger(f"{__name__}.silent")
    silent.disabled = True  # it logs each file that is left out
    _dir_travel(folder, [], visit, include_gitignore=True, logger=silent)


def psutil() -> Any:
    """Return Ray's own copy of psutil, without importing Ray, which takes a while."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    bundled = str(Path(spec.origin).with_name("thirdparty_files"))
    sys.path.insert(0, bundled)
    try:
        return importlib.import_module("psutil")
    finally:
        sys.path.remove(bundled)
