"""Embedding diagnostics: alignment, uniformity, variance and elements of sets, uncertainty of distributions.

Alignment and uniformity are computed for any model with embeddings; for sets also their circular variance, and the
scores with one element alone or left out; for distributions, by their means, also their uncertainty: the sum of an
item's variances, its mean and its deviation over the items.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polypool.infra.errors import InputError
from polypool.pipelines.models.trained import TrainedModel
from polypool.tasks.abilities import Scores
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.scoring.geometry import ablated, alignment, uniformity, variance_of
from polypool.tasks.similarities.vectors import mean_and_log_variance


@dataclass(kw_only=True)
class Analysis:
    """Diagnostics of the embeddings of a split, named `NUMBER/SIDE`.

    Attributes:
        geometry: of the embeddings.
        elements: `metric` with the whole sets, `all`, and with fewer elements of one side; empty without sets.
        metric: the main metric of `protocol`.
        protocol: of the scores with fewer elements.
        note: why there are no sets, if so.
    """

    geometry: dict[str, float]
    elements: dict[str, float] = field(default_factory=dict)
    metric: str = ""
    protocol: str
    note: str = ""


def analyse(trained: TrainedModel, *, split: str, protocol: str = "", elements: bool = True) -> Analysis:
    """Analyse the embeddings of a split, and log the numbers in the run as metrics named `analysis/...`.

    Args:
        trained: loaded from a run.
        split: whose embeddings.
        protocol: of the scores with fewer elements; the run's own where empty.
        elements: score elements of sets alone and left out; for sets of K, about 2K + 1 evaluations.

    Raises:
        InputError: the task has no scores apart from its evaluation, the model no embeddings, or the protocol does not
            fit the split.
    """
    protocol = protocol or trained.run.protocol
    tracker, prefix = trained.tracker, "analysis" if split == "test" else f"analysis/{split}"
    assert tracker is not None  # of a model that comes from a run
    adapter = trained.as_a(Scores, "be analysed", instead="evaluate its runs without --embeddings")
    embeddings = adapter.scorer(trained.model, split)
    if not isinstance(embeddings, SplitEmbeddings):
        raise InputError(
            f"run {tracker.run_id} of the task {trained.run.task!r} cannot be analysed: "
            f"{type(trained.model).__name__} has no embeddings of images and of texts apart; evaluate it without "
            "--embeddings"
        )
    found = Analysis(geometry=_geometry(embeddings, trained, split), protocol=protocol)
    tracker.log({f"{prefix}/{name}": value for name, value in found.geometry.items()}, step=0)
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
        tracker.log({f"{prefix}/{protocol}/{name}": value for name, value in found.elements.items()}, step=0)
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
