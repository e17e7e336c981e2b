"""`python -m pipelines.analyse RUN_ID`: how the embeddings of a trained run lie, and what the elements of its sets do.

Alignment and uniformity for any run with embeddings; for sets also their circular variance, and the scores with one
element alone or left out; for distributions, whose means are what lies there, also their uncertainty: the sum of an
item's variances, its mean and its deviation over the items. The numbers are logged in the run, as metrics named
`analysis/...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from infra.errors import InputError, command
from infra.tables import aligned

if TYPE_CHECKING:
    from pipelines.models import TrainedModel
    from tasks.abilities import Scores
    from tasks.base import Evaluation
    from tasks.models.embeddings import SplitEmbeddings

_SIDES = ("visual", "text", "joint")
_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class AnalyseOptions:
    """What to analyse."""

    run_id: tyro.conf.Positional[str]
    """A trained run."""
    split: str = "test"
    """The split whose embeddings are looked at."""
    protocol: str = ""
    """Protocol of the scores with fewer elements; the run's own where none is given."""
    elements: bool = True
    """Score elements of sets alone and left out: for sets of K, the work of about 2K + 1 evaluations."""
    trust: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A module whose code the run may name, as module:Name; once for each."""


def embeddings_of(trained: TrainedModel, split: str) -> SplitEmbeddings:
    """Encode a split.

    Raises:
        InputError: the task has no scores apart from its evaluation, or the model no embeddings.
    """
    from tasks.models.embeddings import SplitEmbeddings

    score = _scores(trained).scorer(trained.model, split)
    if not isinstance(score, SplitEmbeddings):
        raise InputError(
            f"run {trained.tracker.run_id} of the task {trained.run.task!r} cannot be analysed: "
            f"{type(trained.model).__name__} has no embeddings of images and of texts apart; evaluate it"
        )
    return score


def _scores(trained: TrainedModel) -> Scores:
    from tasks.abilities import Scores

    return trained.as_a(Scores, "be analysed", instead="`python -m pipelines.evaluate` scores its runs")


def geometry(embeddings: SplitEmbeddings, trained: TrainedModel, split: str) -> dict[str, float]:
    """Return alignment and uniformity, the variance of each modality that has sets, and that of distributions."""
    from tasks.scoring.geometry import alignment, uniformity
    from tasks.scoring.set_analysis import variance_of
    from tasks.similarities.vectors import mean_and_log_variance

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


def elements(
    embeddings: SplitEmbeddings, trained: TrainedModel, split: str, protocol: str
) -> tuple[str, dict[str, float]]:
    """Return the protocol's main metric, and it with the whole sets, `all`, and with fewer elements of one modality."""
    from tasks.scoring.set_analysis import ablated

    adapter = _scores(trained)

    def score(of: SplitEmbeddings) -> Evaluation:
        return adapter.evaluate_scores(of, split, protocol)

    whole = score(embeddings)
    metric = whole.primary.name
    fewer = {
        f"{elements}/{side}": score(some).metrics[metric] for side, elements, some in ablated(embeddings)
    }
    return metric, {f"all/{name.partition('/')[2]}": whole.metrics[metric] for name in fewer} | fewer


def table(numbers: Mapping[str, float], *, digits: int) -> list[str]:
    """Return the lines of a table of numbers that are named `row/side`."""
    named = [name.split("/") for name in numbers]
    sides = [side for side in _SIDES if any(side == column for _, column in named)]
    rows = []
    for row in dict.fromkeys(row for row, _ in named):
        values = [numbers.get(f"{row}/{side}") for side in sides]
        texts = ("\u2013" if value is None else f"{value:.{digits}f}" for value in values)
        rows.append((row.replace("_", " "), *texts))
    return aligned(["", *sides], rows, width=_WIDTH)


@command
def main() -> None:
    """Analyse, log and print."""
    options = tyro.cli(AnalyseOptions, prog="python -m pipelines.analyse", description=__doc__)
    from pipelines.models import load_run

    trained = load_run(options.run_id, trust=options.trust)
    run, split = trained.run, options.split
    prefix = "analysis" if split == "test" else f"analysis/{split}"
    embeddings = embeddings_of(trained, split)

    numbers = geometry(embeddings, trained, split)
    trained.tracker.log({f"{prefix}/{name}": value for name, value in numbers.items()}, step=0)
    print(
        f"{run.recipe} {run.aggregator} seed {run.seed}: embeddings of {split} (run {trained.tracker.run_id})\n"
    )
    print(*table(numbers, digits=4), sep="\n")
    if embeddings.similarity.of_distributions:
        print("\nimages and captions are distributions: variance and elements are for models of sets")
    elif embeddings.visual.ndim == embeddings.text.ndim == 2:
        print("\nimages and captions are single vectors: variance and elements are for models of sets")
    elif options.elements:
        protocol = options.protocol or run.protocol
        metric, numbers = elements(embeddings, trained, split, protocol)
        trained.tracker.log({f"{prefix}/{protocol}/{name}": value for name, value in numbers.items()}, step=0)
        print(f"\n{metric} under {protocol}, with elements of\n")
        print(*table(numbers, digits=1), sep="\n")


if __name__ == "__main__":
    main()
