"""Trials side by side in Ray Tune, with early stopping; the only module that imports Tune.

A TorchTrainer cannot be given to a Tuner, so each trial is a function: it trains in its own process, which stays for
the trials after it, or starts workers of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a table even at verbosity 0
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is handled by the command
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last report of a trial has no score
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Asynchronous successive halving (ASHA, Li et al. 2020): after 1, 2, 4, ... epochs the worse half is stopped.

    Attributes:
        metric: as `reporter` reports it.
        higher_is_better: of that metric.
        epochs: of a whole trial, which is never stopped at the last one.
        factor: between the epochs of two decisions; the best 1 / factor go on.
    """

    metric: str
    higher_is_better: bool
    epochs: int
    factor: int = 2


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial that ended: its number, its last report, and the error of its process, if any."""

    number: int
    result: Mapping[str, Any]
    error: str


def run_side_by_side(
    work: Callable[[int], Mapping[str, Any]],
    count: int,
    *,
    concurrent: int,
    folder: Path,
    resources: Mapping[str, float],
    retries: int = 0,
    halving: Halving | None = None,
    ended: Callable[[Ended], None],
) -> None:
    """Call `work(0)` to `work(count - 1)` in processes of the running Ray session, each of which does one at a time.

    Args:
        work: returns a report; an error ends that trial alone.
        count: number of trials.
        concurrent: trials at once.
        folder: for Tune's state; removed at the end.
        resources: which a trial reserves, such as `{"CPU": 2}`; none where its workers reserve them.
        retries: how often a trial is called again whose process died.
        halving: how poor trials are stopped early, if they are; those end with their last report.
        ended: called in this process after each trial.
    """
    os.environ.update(_SETTINGS)
    from ray import tune

    reserved = {"CPU": 0, "memory": 1, **resources}  # Tune refuses an empty request, and would reserve a core

    def trial(config: dict[str, Any]) -> dict[str, Any]:  # Ray shows its name before each line of output
        return dict(work(config["number"]))

    tuner = tune.Tuner(
        tune.with_resources(trial, reserved),
        param_space={"number": tune.grid_search(list(range(count)))},
        tune_config=tune.TuneConfig(
            scheduler=_scheduler(halving) if halving else None,
            max_concurrent_trials=concurrent,
            # the process of a trial that is stopped early must end
            reuse_actors=halving is None,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            verbose=0,
            callbacks=[_end_callback(ended)],
            failure_config=tune.FailureConfig(max_failures=retries),
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scheduler(halving: Halving) -> Any:
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(
        time_attr="epoch",
        metric=halving.metric,
        mode="max" if halving.higher_is_better else "min",
        max_t=max(1, halving.epochs - 1),
        reduction_factor=halving.factor,
        stop_last_trials=False,  # the last trials still score the test split
    )


def _end_callback(ended: Callable[[Ended], None]) -> Any:
    """Return Tune's callback that reports the end of each trial."""
    from ray.tune import Callback

    def report(trial: Any, error: str = "") -> None:
        ended(Ended(number=trial.config["number"], result=dict(trial.last_result or {}), error=error))

    class EndCallback(Callback):
        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
            report(trial)

        def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
            lines = str(trial.get_error() or "").strip().splitlines()
            report(trial, lines[-1] if lines else "its process ended")

        def __reduce__(
            self,
        ) -> tuple[type, tuple]:  # Tune keeps its settings on disk, to be restored by nobody
            return Callback, ()

    return EndCallback()


def report(metric: str, values: Mapping[str, Any]) -> None:
    """Report `metric` and the epoch to the scheduler, from the process of a trial."""
    if metric in values:  # not of a checkpoint within an epoch
        from ray import tune

        tune.report(_of_epoch(metric, values))


def reporter(metric: str) -> Any:
    """Return a callback of Ray Train that reports as `report` does, for a trial with workers of its own."""
    from ray.tune.integration.ray_train import TuneReportCallback

    class Reporter(TuneReportCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if metric in metrics[0]:
                super().after_report(run_context, [_of_epoch(metric, metrics[0])], None)

    return Reporter()


def _of_epoch(metric: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"epoch": values["epoch"], metric: values[metric]}
