"""`python -m pipelines.evaluate RUN_ID [RUN_ID ...]`: score trained runs under a named protocol.

Several runs are an ensemble: the mean of their score matrices, as in all the papers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import tyro

from infra.checkpoint import load_weights
from infra.device import best_device
from infra.errors import command
from infra.files import read_json
from infra.paths import home
from infra.registry import TASKS
from infra.tracking import Tracker, tracking_uri
from pipelines.kept_model import kept_model
from pipelines.models import ASSETS, RUN, WEIGHTS
from pipelines.training.artifacts import keep_evaluation, keep_pictures
from tasks.base import Evaluation, TaskAdapter
from tasks.models.base import TRAINING_ONLY
from tasks.run import Run, from_json
from tasks.scoring.scores import mean_score


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to score."""

    run_ids: Annotated[tuple[str, ...], tyro.conf.Positional]
    """One run, or several for an ensemble."""
    protocol: str = ""
    """Named protocol; the run's own where none is given."""
    split: str = "test"
    """The split that is scored."""
    task: str = ""
    """Task adapter with other parameters, such as "image_text(cxc='data/cxc')"; each run's own where empty."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run with its best model."""

    run: Run
    adapter: TaskAdapter
    model: torch.nn.Module
    tracker: Tracker


def load(run_id: str, *, task: str = "") -> Trained:
    """Rebuild the best model of a run from what tracking holds.

    Args:
        run_id: the run.
        task: the adapter's spec; the run's own where empty.

    Raises:
        InputError: there is no such run, it has no model, or files of that are missing or damaged.
    """
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    folder = kept_model(tracker)
    run = from_json(read_json(folder / RUN, what="the settings of a model"))
    assets = read_json(folder / ASSETS, what="the assets of a model")
    adapter = TASKS.build(task or run.task, run, assets=assets)
    model = adapter.model(pretrained=False)
    load_weights(model, folder / WEIGHTS, optional=TRAINING_ONLY)
    device = best_device()
    return Trained(run=run, adapter=adapter, model=model.to(device).eval(), tracker=tracker)


def evaluate(trained: list[Trained], *, protocol: str, split: str) -> Evaluation:
    """Score one run, or the ensemble of several."""
    first = trained[0].adapter
    if len(trained) == 1:
        return first.evaluate(trained[0].model, split, protocol)
    for other in trained[1:]:
        first.check_same_data(other.adapter, split)
    scores = [t.adapter.scorer(t.model, split) for t in trained]
    return first.evaluate_scores(mean_score(scores), split, protocol)


def track_ensemble(trained: list[Trained], protocol: str, *, recipe: str = "") -> Tracker:
    """Start a run that stands for an ensemble, among the runs that are compared; `recipe` is its own, if it has one."""
    first = trained[0].run
    names = " + ".join(t.run.aggregator for t in trained)
    members = [t.tracker.run_id for t in trained]
    tags = {
        "kind": "ensemble",
        "task": first.task.partition("(")[0],
        "dataset": first.data.dataset,
        "recipe": recipe or first.recipe,
        "aggregator": names,
        "seed": "+".join(str(t.run.seed) for t in trained),
        "protocol": protocol,
    }
    return Tracker.start(
        first.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"ensemble of {names}",
        tags=tags,
        params={"members": ",".join(members)},
    )


@command
def main() -> None:
    """Score, log and print."""
    options = tyro.cli(Options, prog="python -m pipelines.evaluate", description=__doc__)
    trained = [load(run_id, task=options.task) for run_id in dict.fromkeys(options.run_ids)]
    protocol = options.protocol or trained[0].run.protocol
    found = evaluate(trained, protocol=protocol, split=options.split)
    if options.split != "test":
        found = replace(found, protocol=f"{options.split}/{protocol}")
    tracker = trained[0].tracker if len(trained) == 1 else track_ensemble(trained, protocol)
    keep_evaluation(tracker, found, step=0)
    keep_pictures(tracker, *found.pictures)
    if len(trained) > 1:
        tracker.finish("FINISHED")
    names = ", ".join(f"{t.run.recipe} {t.run.aggregator} seed {t.run.seed}" for t in trained)
    print(f"{names}: {options.split} under {protocol} (run {tracker.run_id})")
    for name, value in found.metrics.items():
        print(f"  {name:<16} {value:8.2f}")
    if not math.isnan(found.primary.chance):
        print(f"  {f'chance {found.primary.name}':<16} {found.primary.chance:8.2f}")


if __name__ == "__main__":
    main()
