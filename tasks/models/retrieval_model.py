"""Base class of retrieval models: encoders, scores of all visual items with all texts, and a batch's loss."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polypool.infra.batches import Batch
from polypool.infra.compute.dist import gather, rank
from polypool.infra.errors import InputError
from polypool.tasks.adapter import Score
from polypool.tasks.inputs.texts import TextInputs
from polypool.tasks.models.branch import Branch
from polypool.tasks.objectives.objective import Objective, batch_positives
from polypool.tasks.objectives.regularisers import Regulariser
from polypool.tasks.similarities.similarity import Similarity
from polypool.tasks.similarities.vectors import (
    Embeddings,
    at_least_float32,
    mean_and_log_variance,
    mean_vector,
)

# This worker's share of a split: pairs of sample indices `(B,)` and their batch. Every worker has equally many pairs;
# together they hold every sample, in any order.
Batches = Iterable[tuple[Tensor, Batch]]

# Logged terms of a batch: the standard deviation of its scores, and the variance of its embeddings.
DEVIATION, VISUAL_VARIANCE, TEXT_VARIANCE = "score_deviation", "visual_variance", "text_variance"

# Prefixes of parameters that only the loss uses; scores do not depend on them, so a model file may lack them.
TRAINING_ONLY = ("objective.", "regularisers.")


class Scored(NamedTuple):
    """The scores of the global batch: V images or videos of all workers, and T captions.

    Attributes:
        sim_VT: scores of every image or video with every caption, `(V, T)`, in at least float32.
        item_V: the index of each row's image or video in its split; duplicates are repeated.
        row_T: the row that each column was drawn with.
        visual: embeddings of the rows; None without `has_embeddings`.
        text: embeddings of the columns; None without `has_embeddings`.
    """

    sim_VT: Tensor
    item_V: Tensor
    row_T: Tensor
    visual: Embeddings | None = None
    text: Embeddings | None = None

    @classmethod
    def of_batch(
        cls, batch: Batch, sim_VT: Tensor, *, visual: Embeddings | None = None, text: Embeddings | None = None
    ) -> Scored:
        """Return global scores with the items and rows of all workers' batches.

        Args:
            batch: this worker's; every worker has equally many images and equally many captions.
            sim_VT: the scores of the global batch, in order of rank.
            visual: visual embeddings of the global batch.
            text: text embeddings of the global batch.
        """
        row_T = gather(batch["row"] + rank() * len(batch["item"]))
        return cls(sim_VT, gather(batch["item"]), row_T, visual, text)


class RetrievalModel(nn.Module, ABC):
    """Scores images or videos against texts, and returns its training loss.

    Batches hold `visual` and `visual_mask` of n images or videos, `text` and `text_mask` of m captions, `item`, the
    index of each image in its split, and `row`, the row of each caption's image.

    The objective and the regularisers are submodules: their parameters are part of checkpoints, of the optimiser and of
    DDP's averaging over workers.

    A custom model is a class named by a run (`--model my_package.models:Mine`) or registered with
    `infra.registry.MODELS`. It is built as `Mine(parts, *, ...)` from `tasks.models.parts.Parts`, whose methods create
    new encoders, aggregators, the similarity, the objective and the regularisers of the run; the run's spec sets its
    keyword-only parameters. It calls `super().__init__(similarity, parts.objective(), parts.regularisers())`.

    Args:
        similarity: scores embeddings.
        objective: loss on the scores.
        regularisers: further loss terms.

    Raises:
        InputError: regularisers for a model without separate embeddings of each modality, or for another kind of
            embeddings than the similarity's.
    """

    regularisers: Any
    """`nn.ModuleList` of `Regulariser`s."""
    has_embeddings: bool = False
    """Whether `score_encoded` returns separate embeddings of each modality, which regularisers need."""
    looks_at_pairs: bool = False
    """Whether every pair needs a forward pass; `scorer` then returns a `tasks.scoring.scores.PairsScore`."""

    text_inputs: Callable[..., TextInputs] | None = None
    """A class method that returns the model's text inputs; None for tokens only. It is called with the captions, the
    tokenizer of the text encoder, `limit`, the maximum number of words (0 for no limit), and the parameters of the
    model's spec."""

    def __init__(
        self, similarity: Similarity, objective: Objective, regularisers: Iterable[Regulariser] = ()
    ) -> None:
        super().__init__()
        self.similarity, self.objective = similarity, objective
        terms = [*regularisers]
        self.regularisers = nn.ModuleList(terms)
        if terms and not self.has_embeddings:
            raise InputError(
                f"the regularisers {', '.join(term.name for term in terms)} need separate embeddings of images and "
                f"captions, which {type(self).__name__} does not have; remove them (--regularisers)"
            )
        for term in terms:
            if term.of_distributions != similarity.of_distributions:
                kinds = ("vectors", "distributions (a mean and a log-variance)")
                raise InputError(
                    f"the regulariser {term.name} needs {kinds[term.of_distributions]}, and the embeddings are "
                    f"{kinds[similarity.of_distributions]}; choose another aggregator, or remove the regulariser "
                    "(--regularisers)"
                )

    @property
    def set_size(self) -> float:
        """Maximum number of vectors of a set; infinity if it depends on the input or is unknown, 0 without sets."""
        if not self.similarity.of_sets:
            return 0
        branches = [part for part in self.children() if isinstance(part, Branch)]
        return max((of.aggregator.num_embeddings or math.inf for of in branches), default=math.inf)

    @abstractmethod
    def encode_visual(self, batch: Batch) -> Any:
        """Encode images or videos without their texts, for example to `Embeddings`."""

    @abstractmethod
    def encode_text(self, batch: Batch) -> Any:
        """Encode captions without their images."""

    @abstractmethod
    def score(self, visual: Any, text: Any) -> Tensor:
        """Return the scores `(V, T)` of outputs of `encode_visual` and `encode_text`, in at least float32."""

    @abstractmethod
    def score_encoded(self, batch: Batch, visual: Any, text: Any) -> Scored:
        """Score the global batch; every worker has equally many images and equally many captions.

        Args:
            batch: this worker's share.
            visual: output of `encode_visual`.
            text: output of `encode_text`.
        """

    def score_batch(self, batch: Batch) -> Scored:
        """Encode this worker's share of a batch, and score the global batch."""
        return self.score_encoded(batch, self.encode_visual(batch), self.encode_text(batch))

    @abstractmethod
    def scorer(self, images: Batches, captions: Batches) -> Score:
        """Encode a split once, and return a function that scores any block of it."""

    def forward(self, batch: Batch, *, epoch: float) -> dict[str, Tensor]:
        """Return the objective on the global batch plus the weighted regularisers, and all terms by name.

        Duplicates of items, and captions of one item, are never negatives of each other: see `batch_positives`.

        Args:
            batch: this worker's share of the batch.
            epoch: epochs trained so far, as a fraction.

        Returns:
            Scalars, the same on every worker: `loss` is minimised; the objective's other terms, each regulariser's
                unweighted term, the mean scores of pairs and of negatives, the standard deviation of scores, and the
                variance of embeddings are logged.
        """
        return self.terms(self.score_batch(batch), epoch=epoch)

    def terms(self, scored: Scored, *, epoch: float) -> dict[str, Tensor]:
        """Return the terms of `forward` from the scores of the global batch."""
        positive_VT = batch_positives(scored.item_V, scored.row_T)
        with torch.autocast(scored.sim_VT.device.type, enabled=False):
            sim_VT = at_least_float32(scored.sim_VT)
            terms = self.objective_terms(scored, sim_VT, positive_VT, epoch=epoch)
            sides = [s.map(at_least_float32) for s in (scored.visual, scored.text) if s is not None]
            for regulariser in self.regularisers:  # regularisers are refused for models without embeddings
                term = regulariser(*sides)
                terms[regulariser.name] = term
                terms["loss"] = terms["loss"] + regulariser.weight * term
        with torch.no_grad():
            terms["positive_similarity"] = sim_VT.gather(0, scored.row_T[None]).mean()
            others = (~positive_VT).sum().clamp(min=1)
            terms["negative_similarity"] = sim_VT.masked_fill(positive_VT, 0.0).sum() / others
            terms[DEVIATION] = sim_VT.std(correction=0)
            for side, embeddings in ((VISUAL_VARIANCE, scored.visual), (TEXT_VARIANCE, scored.text)):
                if embeddings is not None:
                    terms[side] = variance(self._points(at_least_float32(embeddings.vectors)))
        return terms

    def objective_terms(
        self, scored: Scored, sim_VT: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        """Return the objective's terms from the scores of the global batch.

        Args:
            scored: the batch.
            sim_VT: its scores, in at least float32, and outside autocast.
            positive_VT: mask of matching items and captions.
            epoch: epochs trained so far, as a fraction.
        """
        return self.objective(sim_VT, scored.row_T, positive_VT, epoch=epoch)

    def _points(self, embedding: Tensor) -> Tensor:
        """Return one point per embedding, `(B, D)`: the mean of a set, or of a distribution."""
        if self.similarity.of_distributions:
            return mean_and_log_variance(embedding)[0]
        return mean_vector(embedding)


def variance(x_BD: Tensor) -> Tensor:
    """Return the mean squared distance of vectors from their mean; 0 if all are equal, near 1 for unit vectors."""
    return (x_BD - x_BD.mean(dim=0)).square().sum(dim=1).mean()
