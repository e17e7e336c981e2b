"""Ray Tune, and the only module that imports it: many pieces of work side by side, the poor ones perhaps stopped early.

A TorchTrainer cannot be given to a Tuner, so each trial is a function that starts a training of its own. It takes no
cores itself, since the workers that it starts do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the other one draws a table even where it is silenced
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # MLflow has it all
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the sweep at once, as it does any command
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # what a trial reports last has no score
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Asynchronous successive halving (ASHA, Li et al. 2020): after 1, 2, 4, ... epochs the worse half is stopped.

    Attributes:
        metric: what `reporter` reports.
        higher_is_better: of that metric.
        epochs: of a whole piece of work; the last one is never stopped at.
        factor: of the epochs between two decisions; the best 1 / factor go on.
    """

    metric: str
    higher_is_better: bool
    epochs: int
    factor: int = 2


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a piece of work ended.

    Attributes:
        number: which one.
        result: what it reported last.
        error: why its process died; empty where it did not.
    """

    number: int
    result: Mapping[str, Any]
    error: str


def run_side_by_side(
    work: Callable[[int], Mapping[str, Any]],
    count: int,
    *,
    concurrent: int,
    folder: Path,
    halving: Halving | None = None,
    ended: Callable[[Ended], None],
) -> None:
    """Call `work(0)` to `work(count - 1)`, each in a process of its own in the running Ray session.

    Args:
        work: returns what it has to report; what it raises ends it and no other.
        count: how many there are.
        concurrent: how many run at once.
        folder: for Tune's own state while this runs; removed in the end.
        halving: whether and how poor ones are stopped early; those end with what they reported last.
        ended: called here, each time one has ended.
    """
    os.environ.update(_SETTINGS)
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    scheduler = None
    if halving is not None:
        scheduler = ASHAScheduler(
            time_attr="epoch",
            metric=halving.metric,
            mode="max" if halving.higher_is_better else "min",
            max_t=max(1, halving.epochs - 1),
            reduction_factor=halving.factor,
            stop_last_trials=False,  # they have their test split to score
        )
    # a request of nothing at all is refused, and a core would be one that the workers lack
    trainable = tune.with_resources(lambda config: dict(work(config["number"])), {"CPU": 0, "memory": 1})
    tuner = tune.Tuner(
        trainable,
        param_space={"number": tune.grid_search(list(range(count)))},
        tune_config=tune.TuneConfig(
            scheduler=scheduler,
            max_concurrent_trials=concurrent,
            # a process that was stopped early still trains, and has to end
            reuse_actors=halving is None,
        ),
        run_config=tune.RunConfig(
            name=folder.name, storage_path=str(folder.parent), verbose=0, callbacks=[_telling(ended)]
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _telling(ended: Callable[[Ended], None]) -> Any:
    """Return Tune's callback that tells of each trial's end."""
    from ray.tune import Callback

    class Telling(Callback):
        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
            ended(Ended(number=trial.config["number"], result=dict(trial.last_result or {}), error=""))

        def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
            lines = (trial.get_error() and str(trial.get_error()).strip().splitlines()) or [
                "its process ended"
            ]
            ended(Ended(number=trial.config["number"], result=dict(trial.last_result or {}), error=lines[-1]))

    return Telling()


def reporter(metric: str) -> Any:
    """Return a callback for Ray Train, made inside `work`: it hands `metric` and the epoch on to the scheduler."""
    from ray.tune.integration.ray_train import TuneReportCallback

    class Reporter(TuneReportCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if metric in metrics[0]:  # checkpoints inside an epoch have none
                values = {"epoch": metrics[0]["epoch"], metric: metrics[0][metric]}
                super().after_report(run_context, [values], None)

    return Reporter()
