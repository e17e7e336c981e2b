"""Evaluation of trained runs and of ensembles, which average the score matrices of several models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.registry import RECIPES
from polypool.infra.tracking import Source, Tracker, tracking_uri
from polypool.infra.tracking.tracker import PARENT
from polypool.pipelines.models.trained import TrainedModel, load_run
from polypool.pipelines.recipes import Ensemble
from polypool.pipelines.training.launch import start
from polypool.pipelines.training.prepare import prepare
from polypool.pipelines.training.run_results import log_evaluation, log_pictures
from polypool.tasks.abilities import Scores
from polypool.tasks.adapter import Evaluation, Score
from polypool.tasks.run import Run
from polypool.tasks.scoring.scores import mean_score


def evaluate(models: Sequence[TrainedModel], *, protocols: Sequence[str], split: str) -> list[Evaluation]:
    """Score one run, or the ensemble of several, under each protocol; images and texts are encoded once.

    Raises:
        InputError: the task cannot average scores, or share them between protocols; the runs are of different tasks or
            data; or a protocol does not fit the split.
    """
    first = models[0]
    if len(models) == len(protocols) == 1:
        return [first.evaluate(protocols[0], split=split)]
    for protocol in protocols:
        first.adapter.check_protocol(protocol, split)
    adapters = [
        trained.as_a(
            Scores, "average scores, or share them", instead="evaluate runs and protocols one by one"
        )
        for trained in models
    ]
    adapter = adapters[0]
    for trained, other in zip(models[1:], adapters[1:], strict=True):
        if not isinstance(other, type(adapter)):
            raise InputError(
                f"runs of the tasks {first.run.task!r} and {trained.run.task!r} cannot be one ensemble; give runs of "
                "one task"
            )
        adapter.check_same_data(other, split)
    scores = [of.scorer(trained.model, split) for trained, of in zip(models, adapters, strict=True)]
    score: Score = scores[0] if len(scores) == 1 else mean_score(scores)
    return [adapter.evaluate_scores(score, split, protocol) for protocol in protocols]


def evaluate_and_log(
    models: Sequence[TrainedModel], *, protocols: Sequence[str], split: str
) -> tuple[str, list[Evaluation]]:
    """Score runs as `evaluate` does, and log it in the run, or in a new run for an ensemble; return its id, too."""
    evaluations = evaluate(models, protocols=protocols, split=split)
    if split != "test":
        evaluations = [replace(each, protocol=f"{split}/{each.protocol}") for each in evaluations]
    tracker = models[0].tracker if len(models) == 1 else track_ensemble(models, protocols[0])
    assert tracker is not None  # of models that come from runs
    with nullcontext() if len(models) == 1 else tracker.ending():
        _log(tracker, models, evaluations, split)
    return tracker.run_id, evaluations


def start_ensemble(ensemble: Ensemble) -> str:
    """Train every member and score them together; return the id of the ensemble's run, their parent."""
    runs = [
        replace(RECIPES.get(name)(), seed=seed, experiment=ensemble.experiment)
        for name, seed in ensemble.seeded()
    ]
    for run in runs:  # a member or protocol that does not fit ends here, and not after the first has trained
        prepare(run)
        prepare(replace(run, protocol=ensemble.protocol))
    tracker = _start_run(runs, ensemble.protocol, ensemble=ensemble)
    with tracker.ending():
        run_ids = [start(run, more_tags={PARENT: tracker.run_id}) for run in runs]
        tracker.params({"members": ",".join(run_ids)})
        models = [load_run(run_id) for run_id in run_ids]
        _log(tracker, models, evaluate(models, protocols=[ensemble.protocol], split="test"), "test")
    return tracker.run_id


def track_ensemble(
    models: Sequence[TrainedModel], protocol: str, *, ensemble: Ensemble | None = None
) -> Tracker:
    """Start the run of an ensemble, given its recipe if it has one; its members keep the parents that they have."""
    tracker = _start_run([trained.run for trained in models], protocol, ensemble=ensemble)
    tracker.params({"members": ",".join(trained.tracker.run_id for trained in models if trained.tracker)})
    return tracker


def _start_run(runs: Sequence[Run], protocol: str, *, ensemble: Ensemble | None) -> Tracker:
    """Start the run of an ensemble whose members are not named yet."""
    first = runs[0]
    names = " + ".join(run.aggregator for run in runs)
    tags = {
        "kind": "ensemble",
        "task": first.task.partition("(")[0],
        "dataset": first.data.dataset,
        "recipe": ensemble.recipe if ensemble else first.recipe,
        "aggregator": names,
        "seed": "+".join(str(run.seed) for run in runs),
        "protocol": protocol,
    }
    params = {
        "published": json.dumps(dict(ensemble.published) if ensemble else {}),
        "source": ensemble.source if ensemble else "",
    }
    return Tracker.start(
        first.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"ensemble of {names}",
        tags=tags,
        params=params,
    )


def _log(
    tracker: Tracker, models: Sequence[TrainedModel], evaluations: Sequence[Evaluation], split: str
) -> None:
    tracker.inputs(_sources(models, split))
    for evaluation in evaluations:
        log_evaluation(tracker, evaluation, step=0)
    log_pictures(tracker, *evaluations[0].pictures)


def _sources(models: Sequence[TrainedModel], split: str) -> list[Source]:
    """Return what is read to score a split: that split of the corpus, and all stores, each once."""
    read = [of for trained in models for of in trained.adapter.sources()]
    other = {"train", "val", "test"} - {split}
    return [*{(of.name, of.digest): of for of in read if of.context not in other}.values()]
