"""An ensemble from its recipe: train each member, then score their mean."""

from __future__ import annotations

from dataclasses import replace

from infra.registry import RECIPES
from pipelines.evaluate import evaluate, load, track_ensemble
from pipelines.recipe import Ensemble
from pipelines.training.artifacts import keep_evaluation, keep_pictures
from pipelines.training.runs import start


def start_ensemble(ensemble: Ensemble) -> str:
    """Train every member and score them together; return the id of the run that stands for the ensemble."""
    run_ids = [
        start(replace(RECIPES.get(name)(), seed=seed, experiment=ensemble.experiment))
        for name, seed in ensemble.seeded()
    ]
    trained = [load(run_id) for run_id in run_ids]
    found = evaluate(trained, protocol=ensemble.protocol, split="test")
    tracker = track_ensemble(trained, ensemble.protocol, recipe=ensemble.recipe)
    keep_evaluation(tracker, found, step=0)
    keep_pictures(tracker, *found.pictures)
    tracker.finish("FINISHED")
    return tracker.run_id
