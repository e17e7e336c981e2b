"""Evaluation of trained runs and of ensembles (means of their score matrices), and embedding diagnostics.

Diagnostics are alignment and uniformity for any model with embeddings; for sets also their circular variance, and the
scores with single elements kept or removed; for distributions, by their means, also their uncertainty: the sum of an
item's variances, as mean and standard deviation over items.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from polypool.infra.errors import InputError
from polypool.infra.paths import home
from polypool.infra.tracking import PARENT, Tracker, tracking_uri
from polypool.pipelines.models.trained import TrainedModel, load
from polypool.pipelines.recipes.load import Ensemble, named_run
from polypool.pipelines.training.record import (
    Described,
    data_tags,
    inherited,
    locked_run,
    log_evaluation,
    log_pictures,
)
from polypool.pipelines.training.train import prepare, start
from polypool.tasks.abilities import Scores, UsesQueryBank
from polypool.tasks.adapter import Evaluation
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.models.retrieval_model import RetrievalModel
from polypool.tasks.run import Run
from polypool.tasks.scoring.geometry import ablated, alignment, uniformity, variance_of
from polypool.tasks.scoring.protocols import check_model, protocol_named
from polypool.tasks.scoring.records import TRAINED_ON
from polypool.tasks.scoring.scores import ScoreWithBank, mean_bank, mean_score
from polypool.tasks.similarities.vectors import mean_and_log_variance


def evaluate(models: Sequence[TrainedModel], *, protocols: Sequence[str], split: str) -> list[Evaluation]:
    """Score one run, or the ensemble of several, under each protocol; images and texts are encoded once.

    Raises:
        InputError: the task cannot average scores, or share them between protocols; runs of different tasks or data; or
            a protocol for another split.
    """
    first = models[0]
    for trained in models:
        trained.check_data()
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
    for protocol, trained in product(protocols, models):
        if isinstance(trained.model, RetrievalModel):
            check_model(protocol_named(protocol), trained.model)
    members = [(trained.model, of) for trained, of in zip(models, adapters, strict=True)]
    by_bank = [name for name in protocols if isinstance(adapter, UsesQueryBank) and adapter.needs_bank(name)]
    banks = [
        of.bank(model, split, protocol=by_bank[0])
        for model, of in members
        if by_bank and isinstance(of, UsesQueryBank)
    ]
    scores = [of.scorer(model, split) for model, of in members]
    score = mean_score(scores)
    banked = ScoreWithBank(score=score, bank=mean_bank(banks)) if banks else score
    return [adapter.evaluate_scores(banked if name in by_bank else score, split, name) for name in protocols]


def evaluate_and_log(
    models: Sequence[TrainedModel], *, protocols: Sequence[str], split: str
) -> tuple[str, list[Evaluation]]:
    """Score runs as `evaluate` does and log the scores; return the id of the run that has them, and the evaluations.

    The id is the run's own; a new run's for an ensemble, and for other data than in training; empty for an exported
    folder, whose scores are not logged.
    """
    evaluations = evaluate(models, protocols=protocols, split=split)
    if split != "test":
        evaluations = [replace(each, protocol=f"{split}/{each.protocol}") for each in evaluations]
    trackers = [trained.tracker for trained in models if trained.tracker]
    if len(trackers) < len(models):
        return "", evaluations
    if len(models) == 1 and not models[0].trained_on:
        _log(trackers[0], models, evaluations, split)
        return trackers[0].run_id, evaluations
    moved = [trained for trained in models if trained.trained_on]
    trained_on = "+".join(dict.fromkeys(trained.trained_on or trained.run.data.dataset for trained in models))
    more = {TRAINED_ON: trained_on, "dataset": moved[0].run.data.dataset} if moved else {}
    if len(models) == 1:
        tracker = track_transfer(models[0], trackers[0].run_id, protocols[0], tags=trackers[0].all_tags())
    else:
        tracker = track_ensemble([trained.run for trained in models], protocols[0], more_tags=more)
        tracker.params({"members": ",".join(of.run_id for of in trackers)})
    with locked_run(tracker):
        if moved:
            tracker.tags(data_tags(models[0].adapter))
        _log(tracker, models, evaluations, split)
    return tracker.run_id, evaluations


def start_ensemble(ensemble: Ensemble) -> str:
    """Train every member and score the ensemble; return the id of its run, the members' parent."""
    runs = [
        replace(named_run(name), seed=seed, experiment=ensemble.experiment)
        for name, seed in ensemble.seeded()
    ]
    for run in runs:  # refuse an invalid member or protocol before the first one trains
        prepare(run)
        prepare(replace(run, protocol=ensemble.protocol))
    tracker = track_ensemble(runs, ensemble.protocol, ensemble=ensemble)
    with locked_run(tracker):
        run_ids = [start(run, more_tags={PARENT: tracker.run_id}) for run in runs]
        tracker.params({"members": ",".join(run_ids)})
        models = [load(run_id) for run_id in run_ids]
        _log(tracker, models, evaluate(models, protocols=[ensemble.protocol], split="test"), "test")
    return tracker.run_id


def track_transfer(trained: TrainedModel, run_id: str, protocol: str, *, tags: Mapping[str, str]) -> Tracker:
    """Start a run of kind `transfer`, a child of the trained run, for its scores on other data."""
    run, trained_on = trained.run, trained.trained_on
    described = Described.of(replace(run, protocol=protocol, published={}, source=""))
    named = f"{described.name}, on {run.data.dataset}"
    words = (
        f"Run {run_id}, which was trained on {trained_on}, scored on {run.data.dataset} ({run.data.corpus})."
    )
    tags = {"kind": "transfer", TRAINED_ON: trained_on, PARENT: run_id, **inherited(tags)}
    return replace(described, name=named, words=words).start(tracking_uri(home()), home(), more_tags=tags)


def track_ensemble(
    runs: Sequence[Run],
    protocol: str,
    *,
    ensemble: Ensemble | None = None,
    more_tags: Mapping[str, str] | None = None,
) -> Tracker:
    """Start the run of an ensemble, with its recipe, if any; its members are recorded later."""
    first, names = runs[0], " + ".join(run.aggregator for run in runs)
    return Tracker.start(
        first.experiment,
        uri=tracking_uri(home()),
        home=home(),
        name=f"ensemble of {names} · {first.task_name} · {first.data.dataset}",
        tags={
            "kind": "ensemble",
            "task": first.task_name,
            "dataset": first.data.dataset,
            "features": first.features,
            "recipe": ensemble.recipe if ensemble else first.recipe,
            "aggregator": names,
            "seed": "+".join(str(run.seed) for run in runs),
            "protocol": protocol,
            **(more_tags or {}),
        },
        params={
            "published": json.dumps(dict(ensemble.published) if ensemble else {}),
            "source": ensemble.source if ensemble else "",
        },
    )


def _log(
    tracker: Tracker, models: Sequence[TrainedModel], evaluations: Sequence[Evaluation], split: str
) -> None:
    """Log the inputs of the evaluation (the split of the corpus and all stores, each once) and the scores."""
    read = [of for trained in models for of in trained.adapter.sources()]
    other = {"train", "val", "test"} - {split}
    tracker.inputs([*{(of.name, of.digest): of for of in read if of.context not in other}.values()])
    epochs = tracker.history("epoch")
    step = epochs[-1][0] if epochs else 0  # the last of training: MLflow shows the value of the largest step
    own = tracker.tag("protocol")
    for evaluation in evaluations:
        log_evaluation(tracker, evaluation, step=step, own=evaluation.protocol == own)
    log_pictures(tracker, *evaluations[0].pictures)


@dataclass(kw_only=True)
class Analysis:
    """Diagnostics of the embeddings of a split, named `NUMBER/SIDE`.

    Attributes:
        geometry: alignment, uniformity, variance and uncertainty of the embeddings.
        elements: `metric` with whole sets, `all`, and with fewer elements of one side; empty without sets.
        metric: the main metric of `protocol`.
        protocol: protocol of the scores with fewer elements.
        note: why sets were not analysed, if so.
    """

    geometry: dict[str, float]
    elements: dict[str, float] = field(default_factory=dict)
    metric: str = ""
    protocol: str
    note: str = ""


def analyse(trained: TrainedModel, *, split: str, protocol: str = "", elements: bool = True) -> Analysis:
    """Analyse the embeddings of a split, and log the numbers in the run, if any, as metrics named `analysis/...`.

    Args:
        trained: the model.
        split: split of the embeddings.
        protocol: protocol of the scores with fewer elements (default: the run's).
        elements: score sets with single elements kept or removed; about 2K + 1 evaluations for sets of K.

    Raises:
        InputError: the task has no score matrix, the model no embeddings, or the protocol is for another split or
            needs a query bank.
    """
    trained.check_data()
    protocol = protocol or trained.run.protocol
    tracker, prefix = trained.tracker, "analysis" if split == "test" else f"analysis/{split}"
    log: Callable[[dict[str, float]], object] = (
        partial(tracker.log, step=0) if tracker else lambda numbers: None
    )
    adapter = trained.as_a(Scores, "be analysed", instead="evaluate its runs without --embeddings")
    if elements and isinstance(adapter, UsesQueryBank) and adapter.needs_bank(protocol):
        raise InputError(
            f"protocol {protocol!r} needs the scores of training queries, which --embeddings does not compute for sets "
            "with fewer elements; give a --protocol without them, or --no-elements"
        )
    embeddings = adapter.scorer(trained.model, split)
    if not isinstance(embeddings, SplitEmbeddings):
        raise InputError(
            f"{trained.run.label} of the task {trained.run.task!r} cannot be analysed: "
            f"{type(trained.model).__name__} has no embeddings of images and of texts apart; evaluate it without "
            "--embeddings"
        )
    found = Analysis(geometry=_geometry(embeddings, trained, split), protocol=protocol)
    log({f"{prefix}/{name}": value for name, value in found.geometry.items()})
    kind = "distributions" if embeddings.similarity.of_distributions else ""
    if not kind and embeddings.visual.ndim == embeddings.text.ndim == 2:
        kind = "single vectors"
    if kind:
        found.note = f"images and captions are {kind}: variance and elements are for models of sets"
    elif elements:
        whole = adapter.evaluate_scores(embeddings, split, protocol)
        found.metric = whole.primary.name
        fewer = {
            f"{name}/{side}": adapter.evaluate_scores(some, split, protocol).metrics[found.metric]
            for side, name, some in ablated(embeddings)
        }
        found.elements = {f"all/{name.partition('/')[2]}": whole.metrics[found.metric] for name in fewer}
        found.elements |= fewer
        log({f"{prefix}/{protocol}/{name}": value for name, value in found.elements.items()})
    return found


def _geometry(embeddings: SplitEmbeddings, trained: TrainedModel, split: str) -> dict[str, float]:
    owner_T = trained.pairs(split, "be analysed").owner_T
    visual, text, uncertain = embeddings.visual, embeddings.text, embeddings.uncertainty()
    if uncertain:
        (visual, _), (text, _) = map(mean_and_log_variance, (visual, text))
    numbers = {"alignment/joint": alignment(visual, text, owner_T)}
    numbers |= {f"uniformity/{side}": value for side, value in uniformity(visual, text).items()}
    for side, sum_B in zip(("visual", "text"), uncertain or (), strict=False):
        numbers[f"uncertainty/{side}"] = float(sum_B.double().mean())
        numbers[f"uncertainty_deviation/{side}"] = float(sum_B.double().std(correction=0))
    for side, embedding in (("visual", visual), ("text", text)):
        if embedding.ndim == 3:
            numbers |= {f"{name}/{side}": value for name, value in variance_of(embedding).items()}
    return numbers
