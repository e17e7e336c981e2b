"""Signs of a collapsed retrieval model: equal scores, and a loss stuck at that of equal scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from polypool.tasks.abilities import Collapse
from polypool.tasks.adapter import Evaluation
from polypool.tasks.models.retrieval_model import DEVIATION, TEXT_VARIANCE, VISUAL_VARIANCE, RetrievalModel
from polypool.tasks.objectives.objective import Objective, batch_positives
from polypool.tasks.run import Run

# Scores are flat where they deviate by less than this share of the difference that the objective strives for.
FLAT = 0.05
# Embeddings have shrunk to a point where they vary by less than this share of how they varied at first.
SHRUNK = 0.15
# Pairs are no more alike than others where their mean scores are less than this many deviations apart.
APART = 0.2
NEAR = 0.9  # the loss has not left the plateau where it is at least this share of it


def collapse(
    model: RetrievalModel,
    means: Mapping[str, float],
    run: Run,
    *,
    texts_each: int,
    first: Mapping[str, float],
    epoch: float,
    modality: str,
) -> Collapse | None:
    """Return the signs of a collapsed model in the means of some steps, or None.

    It has where pairs score no higher than others, the loss is not below that of equal scores, and either all scores
    are alike or the embeddings of one side have shrunk to a point. The first two hold of every model that begins.

    Args:
        model: that is trained.
        means: of what the steps logged.
        run: of the model.
        texts_each: of an item in a batch.
        first: what the run's first step logged, before any change of weights; empty if unknown.
        epoch: epochs trained so far, as a fraction.
        modality: what the items are.
    """
    objective, deviation = model.objective, means[DEVIATION]
    strives_for = objective.strives_for
    gap = means["positive_similarity"] - means["negative_similarity"]
    if not strives_for or not gap <= APART * deviation:
        return None
    sides = {VISUAL_VARIANCE: f"{modality}s", TEXT_VARIANCE: "texts"}
    shrunk = [side for side in sides if side in first and means[side] < SHRUNK * first[side]]
    if not shrunk and not deviation < FLAT * strives_for:
        return None
    loss = means["loss"] - sum(each.weight * means[each.name] for each in model.regularisers)
    plateau = _plateau(objective, means["negative_similarity"], run.optim.batch, texts_each, epoch=epoch)
    if not loss >= NEAR * plateau:
        return None
    tied = "; all ranks are tied" if deviation == 0 else ""
    symptoms = [
        f"pairs score {gap:.2g} more than others, scores deviate by {deviation:.2g}, and the objective strives for "
        f"differences of {strives_for:.3g}{tied}",
        f"the loss is {loss:.4g}, and {plateau:.4g} where all scores are equal",
    ]
    for side, name in sides.items():
        if side in means:
            before = f" ({first[side]:.2g} at first)" if side in first else ""
            symptoms.append(f"the embeddings of {name} vary by {means[side]:.2g}{before}")
    return Collapse(symptoms=tuple(symptoms), advice=objective.advice(epoch=epoch))


def tied_evaluation(evaluation: Evaluation, *, modality: str) -> Collapse | None:
    """Return the signs of a collapse in an evaluation of retrieval, or None."""
    letter = modality[0]
    ranks = [evaluation.per_query.get(name, ()) for name in (f"{letter}2t_rank", f"t2{letter}_rank")]
    queries = sum(map(len, ranks))
    if not queries or evaluation.metrics["ties"] < queries:
        return None
    return Collapse(symptoms=(f"all ranks under {evaluation.protocol} are tied",))


def _plateau(objective: Objective, score: float, items: int, texts_each: int, *, epoch: float) -> float:
    """Return the loss of equal scores of a batch whose items all differ."""
    device = next(objective.parameters(), torch.empty(0)).device
    item_V = torch.arange(items, device=device)
    row_T = item_V.repeat_interleave(texts_each)
    return objective.plateau(score, row_T, batch_positives(item_V, row_T), epoch=epoch)
