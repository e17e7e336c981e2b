"""`python -m pipelines.evaluate RUN_ID [RUN_ID ...]`: score trained runs under a named protocol.

Several runs are an ensemble: the mean of their score matrices, as in all the papers. Several protocols, each behind a
--protocol of its own, are shown side by side.

A model that looks at every pair of image and caption takes days for COCO's 5,000 x 25,000. With --rerank 100 it looks
at the 100 best of a first pass for each query, and for that pass at as many probes: tasks/scoring/ranking/reranking.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from infra.errors import InputError, command
from infra.paths import home
from infra.registry import RECIPES
from pipelines.recipe import Ensemble

if TYPE_CHECKING:
    from infra.tracking import Source, Tracker
    from pipelines.models import TrainedModel
    from tasks.abilities import Scores
    from tasks.base import Evaluation, Score
    from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What to score."""

    run_ids: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(required)")]
    """One run, or several for an ensemble."""
    protocol: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Named protocol, once for each; the run's own where none is given. Examples are drawn by the first."""
    split: str = "test"
    """The split that is scored."""
    rerank: int | None = None
    """Score this many of each query's gallery, by a model that looks at every pair; the protocol is then called
    PROTOCOL-rerankK, and compared with its like alone."""
    task: str = ""
    """Task adapter with other parameters, such as "image_text(cxc='data/cxc')"; each run's own where empty."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the runs may name, as module:Name; once for each."""


def evaluate(models: Sequence[TrainedModel], *, protocol: str, split: str) -> Evaluation:
    """Score one run, or the ensemble of several.

    Raises:
        InputError: the task cannot average the scores of several models, the runs are of different tasks or data, or
            the protocol does not fit the split.
    """
    if len(models) == 1:
        return models[0].evaluate(protocol, split=split)
    models[0].adapter.check_protocol(protocol, split)
    adapter, score = _scored(models, split)
    return adapter.evaluate_scores(score, split, protocol)


def side_by_side(models: Sequence[TrainedModel], *, protocols: Sequence[str], split: str) -> list[Evaluation]:
    """Score one run, or the ensemble of several, under some protocols; images and texts are encoded once.

    Raises:
        InputError: see `evaluate`; or the task has no scores that several protocols could share.
    """
    if len(protocols) == 1:
        return [evaluate(models, protocol=protocols[0], split=split)]
    for protocol in protocols:
        models[0].adapter.check_protocol(protocol, split)
    adapter, score = _scored(models, split)
    return [adapter.evaluate_scores(score, split, protocol) for protocol in protocols]


def _scored(models: Sequence[TrainedModel], split: str) -> tuple[Scores, Score]:
    """Return the first model's adapter, and the mean of all scores."""
    from tasks.abilities import Scores
    from tasks.scoring.scores import mean_score

    adapters = [
        trained.as_a(
            Scores, "average scores, or share them", instead="evaluate runs and protocols one by one"
        )
        for trained in models
    ]
    first = adapters[0]
    for trained, other in zip(models[1:], adapters[1:], strict=True):
        if not isinstance(other, type(first)):
            raise InputError(
                f"runs of the tasks {models[0].run.task!r} and {trained.run.task!r} cannot be one ensemble; give runs "
                "of one task"
            )
        first.check_same_data(other, split)
    scores = [adapter.scorer(trained.model, split) for trained, adapter in zip(models, adapters, strict=True)]
    return first, scores[0] if len(scores) == 1 else mean_score(scores)


def start_ensemble(ensemble: Ensemble) -> str:
    """Train every member and score them together; return the id of the run that stands for them, their parent."""
    from infra.tracking.tracker import PARENT
    from pipelines.models import load_run
    from pipelines.training.recording.artifacts import log_evaluation, log_pictures
    from pipelines.training.runs import prepare, start

    runs = [
        replace(RECIPES.get(name)(), seed=seed, experiment=ensemble.experiment)
        for name, seed in ensemble.seeded()
    ]
    for run in runs:  # a member or protocol that does not fit ends here, and not after the first has trained
        prepare(run)
        prepare(replace(run, protocol=ensemble.protocol))
    tracker = _begun(runs, ensemble.protocol, ensemble=ensemble)
    with tracker.ending():
        run_ids = [start(run, more_tags={PARENT: tracker.run_id}) for run in runs]
        tracker.params({"members": ",".join(run_ids)})
        models = [load_run(run_id) for run_id in run_ids]
        evaluation = evaluate(models, protocol=ensemble.protocol, split="test")
        tracker.inputs(scored_sources(models, "test"))
        log_evaluation(tracker, evaluation, step=0)
        log_pictures(tracker, *evaluation.pictures)
    return tracker.run_id


def scored_sources(models: Sequence[TrainedModel], split: str) -> list[Source]:
    """Return what is read to score a split: of the corpus that split, and all stores, each once."""
    read = [of for trained in models for of in trained.adapter.sources()]
    other = {"train", "val", "test"} - {split}
    return [*{(of.name, of.digest): of for of in read if of.context not in other}.values()]


def track_ensemble(
    models: Sequence[TrainedModel], protocol: str, *, ensemble: Ensemble | None = None
) -> Tracker:
    """Start a run that stands for an ensemble, among the runs that are compared; `ensemble` is its recipe, if any.

    Its members keep the parents that they have.
    """
    tracker = _begun([trained.run for trained in models], protocol, ensemble=ensemble)
    tracker.params({"members": ",".join(trained.tracker.run_id for trained in models)})
    return tracker


def _begun(runs: Sequence[Run], protocol: str, *, ensemble: Ensemble | None) -> Tracker:
    """Start the run of an ensemble whose members are still to be named."""
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
    from infra.tracking import Tracker, tracking_uri

    return Tracker.start(
        first.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"ensemble of {names}",
        tags=tags,
        params={
            "published": json.dumps(dict(ensemble.published) if ensemble else {}),
            "source": ensemble.source if ensemble else "",
        },
    )


def table(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the lines of a table: a row a metric, a column an evaluation, whose names stand above if there are two."""
    from pipelines.training.recording.artifacts import printed

    columns = [
        each.metrics
        | ({} if math.isnan(each.primary.chance) else {f"chance {each.primary.name}": each.primary.chance})
        for each in evaluations
    ]
    sizes = [max(9, len(each.protocol)) if len(evaluations) > 1 else 9 for each in evaluations]
    names = list(dict.fromkeys(name for column in columns for name in column))
    first = max(16, *map(len, names))
    rows = [
        (name, *(printed(column[name]) if name in column else "\u2013" for column in columns))
        for name in names
    ]
    if len(evaluations) > 1:
        rows.insert(0, ("", *(each.protocol for each in evaluations)))
    return [
        f"  {name:<{first}} " + "  ".join(f"{x:>{size}}" for x, size in zip(values, sizes, strict=True))
        for name, *values in rows
    ]


@command
def main() -> None:
    """Score, log and print."""
    options = tyro.cli(EvaluateOptions, prog="python -m pipelines.evaluate", description=__doc__)
    if options.rerank is not None and options.rerank < 1:
        raise InputError(f"--rerank must be at least 1, such as 100, not {options.rerank}")
    from pipelines.models import load_run
    from pipelines.training.recording.artifacts import log_evaluation, log_pictures
    from tasks.scoring.protocols import RERANK

    models = [
        load_run(run_id, task=options.task, trust=options.trust) for run_id in dict.fromkeys(options.run_ids)
    ]
    reranked = f"{RERANK}{options.rerank}" if options.rerank else ""
    named = options.protocol or (models[0].run.protocol,)
    protocols = [f"{name}{reranked}" for name in dict.fromkeys(named)]
    evaluations = side_by_side(models, protocols=protocols, split=options.split)
    if options.split != "test":
        evaluations = [replace(each, protocol=f"{options.split}/{each.protocol}") for each in evaluations]
    tracker = models[0].tracker if len(models) == 1 else track_ensemble(models, protocols[0])
    with nullcontext() if len(models) == 1 else tracker.ending():
        tracker.inputs(scored_sources(models, options.split))
        for evaluation in evaluations:
            log_evaluation(tracker, evaluation, step=0)
        log_pictures(tracker, *evaluations[0].pictures)
    names = ", ".join(f"{t.run.recipe} {t.run.aggregator} seed {t.run.seed}" for t in models)
    print(f"{names}: {options.split} under {', '.join(protocols)} (run {tracker.run_id})")
    print(*table(evaluations), sep="\n")


if __name__ == "__main__":
    main()
