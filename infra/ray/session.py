"""Ray: a session that never joins a stray cluster, and the training of one run on its workers."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.environment import environment
from infra.errors import InputError
from infra.ray.head import free_ports


@contextmanager
def ray_session(*, cpus: int | None = None) -> Iterator[None]:
    """Use the cluster that RAY_ADDRESS names (a Ray job has one), or a private one on this machine, then leave it.

    Inside another session, that one is used and left open.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
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
        # Ray Train asks the dashboard how its actors are, and complains every second where there is none
        options |= {"include_dashboard": True, "dashboard_host": "127.0.0.1", "num_cpus": cpus}
    try:
        with _known_address() if address == "local" else nullcontext():
            ray.init(address=address, **options)
    except ConnectionError as error:
        raise InputError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
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
    """Return how many cores of this machine a private session would have."""
    return len(os.sched_getaffinity(0))


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


def fit(
    run: dict[str, Any],
    *,
    run_id: str,
    tracking_uri: str,
    home: Path,
    resources: Resources,
    callbacks: Sequence[Any] = (),
) -> None:
    """Train a run on Ray Train workers; one that was started under the same id goes on from its last checkpoint.

    Args:
        run: as JSON.
        run_id, tracking_uri, home: where it is recorded, and where its checkpoints are kept.
        resources: of each worker.
        callbacks: Ray Train's, told of every report of the workers, such as `infra.ray.tuning.reporter`.

    Raises:
        InputError: a worker refused its input.
        RuntimeError: a worker failed more often than `run["retries"]` allows.
    """
    from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    trainer = TorchTrainer(
        _worker,
        train_loop_config={
            "run": run,
            "run_id": run_id,
            "tracking_uri": tracking_uri,
            "home": str(home),
            "threads": resources.cpus,
            "terminal": sys.stderr.isatty(),
        },
        scaling_config=ScalingConfig(
            num_workers=run["workers"], use_gpu=resources.gpu, resources_per_worker={"CPU": resources.cpus}
        ),
        run_config=RunConfig(
            name=run_id,
            storage_path=str(home / "runs"),
            failure_config=FailureConfig(max_failures=run["retries"]),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            logging_config=LoggingConfig(log_level="WARNING"),
            callbacks=list(callbacks),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        for failure in getattr(error, "worker_failures", {}).values():
            if cause := _input_error(failure):
                raise InputError(str(cause)) from error
        raise RuntimeError(
            f"training failed; `python -m pipelines.train resume {run_id}` goes on: {error}"
        ) from error


def _input_error(error: BaseException | None) -> InputError | None:
    """Find the InputError among the causes of a worker's failure."""
    while error is not None and not isinstance(error, InputError):
        error = getattr(error, "_base_exc", None) or getattr(error, "cause", None) or error.__cause__
    return error


def _worker(config: dict[str, Any]) -> None:
    """Train on one worker; runs in a process of Ray's."""
    os.environ["POLYPOOL_HOME"] = config["home"]
    import ray.train
    import torch
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    from infra.ray.progress import LineBar
    from infra.registry import TASKS
    from infra.tracking import Tracker
    from pipelines.training.loop import Trainer
    from tasks.run import from_json

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        checkpoint = ray.train.Checkpoint.from_directory(folder) if folder else None
        ray.train.report(metrics, checkpoint=checkpoint)

    noisy = (
        Path(ray.__file__).parent / "train/v2/_internal/execution/context.py"
    )  # a logger named by its file
    logging.getLogger(str(noisy)).setLevel(logging.WARNING)  # it tells of every checkpoint
    torch.set_num_threads(config["threads"])
    run = from_json(config["run"])
    first = ray.train.get_context().get_world_rank() == 0
    log = Tracker.attach(config["tracking_uri"], config["run_id"]) if first else None
    bar = drawn_by_the_driver if config["terminal"] else LineBar
    trainer = Trainer(run, TASKS.build(run.task, run), log=log, report=report, device=get_device(), bar=bar)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            trainer.resume(Path(folder))
    trainer.train()
