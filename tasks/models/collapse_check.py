"""Signs of a collapsed retrieval model: equal scores, and a loss stuck at that of equal scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polypool.tasks.abilities import Collapse
from polypool.tasks.objectives.objective import Objective, batch_positives

# What a batch logs: the standard deviation of its scores, and the variance of its embeddings.
DEVIATION, VISUAL_VARIANCE, TEXT_VARIANCE = "score_deviation", "visual_variance", "text_variance"
# Scores are flat where they deviate by less than this share of the difference that the objective strives for.
FLAT = 0.05
# Embeddings have shrunk to a point where they vary by less than this share of how they varied at first.
SHRUNK = 0.15
# Pairs are no more alike than others where their mean scores are less than this many deviations apart.
APART = 0.2
NEAR = 0.9  # the loss has not left the plateau where it is at least this share of it


def variance(x_BD: Tensor) -> Tensor:
    """Return the mean squared distance of vectors from their mean; 0 where all are one, near 1 for unit vectors."""
    return (x_BD - x_BD.mean(dim=0)).square().sum(dim=1).mean()


def collapse(
    objective: Objective,
    means: Mapping[str, float],
    *,
    loss: float,
    first: Mapping[str, float],
    items: int,
    texts_each: int,
    epoch: float,
    modality: str,
) -> Collapse | None:
    """Return the signs of a collapsed model in the means of some steps, or None.

    It has where pairs score no higher than others, the loss is not below that of equal scores, and either all scores
    are alike or the embeddings of one side have shrunk to a point. The first two hold of every model that begins.

    Args:
        objective: of the model.
        means: of what the steps logged.
        loss: of the objective alone, their mean.
        first: what the run's first step logged, before any change of weights; empty if unknown.
        items: images or videos of a batch.
        texts_each: texts of each.
        epoch: epochs trained so far, as a fraction.
        modality: what the items are.
    """
    strives_for, deviation = objective.strives_for, means[DEVIATION]
    gap = means["positive_similarity"] - means["negative_similarity"]
    if not strives_for or not gap <= APART * deviation:
        return None
    sides = {VISUAL_VARIANCE: f"{modality}s", TEXT_VARIANCE: "texts"}
    shrunk = [side for side in sides if side in first and means[side] < SHRUNK * first[side]]
    if not shrunk and not deviation < FLAT * strives_for:
        return None
    plateau = _plateau(objective, means["negative_similarity"], items, texts_each, epoch=epoch)
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


def _plateau(objective: Objective, score: float, items: int, texts_each: int, *, epoch: float) -> float:
    """Return the loss of equal scores of a batch whose items all differ."""
    device = next(objective.parameters(), torch.empty(0)).device
    item_V = torch.arange(items, device=device)
    row_T = item_V.repeat_interleave(texts_each)
    return objective.plateau(score, row_T, batch_positives(item_V, row_T), epoch=epoch)
