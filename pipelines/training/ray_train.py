"""The training of one run on Ray Train's workers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.ray.progress import LineBar
from infra.ray.session import Resources
from infra.registry import TASKS
from infra.tracking import Tracker
from infra.trust import trust_flags, trust_modules, trusted
from tasks.run import Run, modules


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What the driver sends to each worker.

    Attributes:
        run: to train.
        run_id, tracking_uri: where it is recorded.
        home: the project's folder of data and runs.
        threads: of torch.
        terminal: whether the driver's output is one, where progress may be drawn over and over.
        trusted: modules whose code specs may name.
    """

    run: Run
    run_id: str
    tracking_uri: str
    home: Path
    threads: int
    terminal: bool
    trusted: tuple[str, ...]


def fit(
    run: Run, *, tracker: Tracker, home: Path, resources: Resources, callbacks: Sequence[Any] = ()
) -> None:
    """Train a run on Ray Train workers; one that was started under the same id goes on from its last checkpoint.

    Args:
        run: its complete description.
        tracker: of the run that records it.
        home: the folder where its checkpoints are kept, under `runs/<id>`.
        resources: of each worker.
        callbacks: Ray Train's, called with every report of the workers, such as `infra.ray.tuning.reporter`.

    Raises:
        InputError: a worker refused its input.
        RuntimeError: a worker failed more often than `run.retries` allows.
    """
    from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    work = _Work(
        run=run,
        run_id=tracker.run_id,
        tracking_uri=tracker.uri,
        home=home,
        threads=resources.cpus,
        terminal=sys.stderr.isatty(),
        trusted=trusted(),
    )
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"work": work},
        scaling_config=ScalingConfig(
            num_workers=run.workers, use_gpu=resources.gpu, resources_per_worker={"CPU": resources.cpus}
        ),
        run_config=RunConfig(
            name=tracker.run_id,
            storage_path=str(home / "runs"),
            failure_config=FailureConfig(max_failures=run.retries),
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
        resume = " ".join(["python -m pipelines.train resume", tracker.run_id, *trust_flags(modules(run))])
        raise RuntimeError(f"training failed; `{resume}` goes on: {error}") from error


def _input_error(error: BaseException | None) -> InputError | None:
    """Find the InputError among the causes of a worker's failure."""
    while error is not None and not isinstance(error, InputError):
        error = getattr(error, "_base_exc", None) or getattr(error, "cause", None) or error.__cause__
    return error


def _worker(config: dict[str, _Work]) -> None:
    """Train on one worker; runs in a process of Ray's."""
    work = config["work"]
    os.environ["POLYPOOL_HOME"] = str(work.home)
    trust_modules(*work.trusted)
    import ray.train
    import torch
    from ray.experimental.tqdm_ray import tqdm as drawn_by_the_driver
    from ray.train.torch import get_device

    from pipelines.training.loop import Trainer

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        checkpoint = ray.train.Checkpoint.from_directory(folder) if folder else None
        ray.train.report(metrics, checkpoint=checkpoint)

    # a logger that is named by its file, and tells of every checkpoint
    context = Path(ray.__file__).parent / "train/v2/_internal/execution/context.py"
    logging.getLogger(str(context)).setLevel(logging.WARNING)
    torch.set_num_threads(work.threads)
    first = ray.train.get_context().get_world_rank() == 0
    trainer = Trainer(
        work.run,
        TASKS.build(work.run.task, work.run),
        log=Tracker.attach(work.tracking_uri, work.run_id) if first else None,
        report=report,
        device=get_device(),
        bar=drawn_by_the_driver if work.terminal else LineBar,
    )
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            trainer.resume(Path(folder))
    trainer.train()
