"""Optional capabilities of a task's adapter, as protocols that some verbs, settings and joint training require."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from polypool.tasks.adapter import Evaluation, Score

if TYPE_CHECKING:  # verbs that only read results, such as `compare`, do not import torch
    import numpy as np
    from torch import Tensor, nn

    from polypool.infra.store import FeatureStore
    from polypool.tasks.datasets.corpus import Corpus, QuestionCorpus
    from polypool.tasks.inputs.texts import TextInputs
    from polypool.tasks.inputs.visuals import VisualInputs
    from polypool.tasks.scoring.scores import QueryBank


@runtime_checkable
class CountsWords(Protocol):
    """An adapter whose text encoder can be shared with other tasks, with a vocabulary of all their words."""

    @abstractmethod
    def counted_texts(self) -> Iterable[str]:
        """Return the texts from which the vocabulary of a new text encoder is built."""

    @abstractmethod
    def assets_for(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the adapter's assets with a text encoder built for other texts."""


class PartialLoss(NamedTuple):
    """A part of a training step: a scalar to backpropagate, and terms to log."""

    loss: Tensor
    """A scalar to backpropagate; gradients accumulate over passes."""
    terms: Mapping[str, Tensor] = MappingProxyType({})
    """This pass's parts of the scalars of `TaskAdapter.loss`; they add up to the batch's."""


@runtime_checkable
class Chunked(Protocol):
    """An adapter that can process a batch in chunks with the gradient of the whole batch (`--optim.chunk`)."""

    @abstractmethod
    def passes(
        self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float, chunk: int
    ) -> Iterator[PartialLoss]:
        """Yield passes; each is backpropagated before the next is computed.

        The sum of their gradients is the gradient of `TaskAdapter.loss` for the whole batch, before averaging over
        workers.

        Args:
            model: not wrapped in DDP.
            batch: this worker's share of the batch; all workers have equally many samples.
            epoch: epochs trained so far, as a fraction.
            chunk: samples per forward pass.
        """


@runtime_checkable
class CollapseCheck(Protocol):
    """An adapter that detects a collapsed model, so that a run warns."""

    @abstractmethod
    def collapse(self, model: nn.Module, means: Mapping[str, float], *, first: Mapping[str, float]) -> str:
        """Return a description of the model's collapse, from the means of logged terms; empty if it has not collapsed.

        Args:
            model: the trained model.
            means: of the terms logged in recent steps.
            first: terms logged in the run's first step; empty after a restart.
        """


@runtime_checkable
class Scores(Protocol):
    """An adapter that separates computing scores from evaluating them.

    `evaluate A B` averages the scores of several models before evaluation, and `evaluate --embeddings` changes them. A
    score is a function of two slices: rows are the images, videos or questions of a split, columns the captions or
    answers, and any block of the matrix can be computed separately: `score(slice(0, 10), slice(None))`.
    """

    @abstractmethod
    def scorer(self, model: nn.Module, split: str) -> Score:
        """Return a function that computes any block of a split's scores `(rows, columns)`, float32; higher is better.

        Every worker calls this; each may then compute other blocks.
        """

    @abstractmethod
    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Evaluate a split from such a function; `evaluate` uses the model's."""

    @abstractmethod
    def check_same_data(self, other: Any, split: str) -> None:
        """Check that another adapter of the same class has the same rows and columns of scores.

        Raises:
            InputError: they differ, so that a mean of scores would be meaningless.
        """


@runtime_checkable
class UsesQueryBank(Protocol):
    """An adapter with protocols that score a split against the queries of the training split."""

    @abstractmethod
    def needs_bank(self, protocol: str) -> bool:
        """Whether a protocol needs a query bank; `evaluate_scores` then takes a `scoring.scores.ScoreWithBank`."""

    @abstractmethod
    def bank(self, model: nn.Module, split: str, *, protocol: str) -> QueryBank:
        """Return the scores of training queries with a split; every worker calls this.

        Args:
            model: in any mode.
            split: whose items and texts are the gallery.
            protocol: one that needs the bank, and that the model supports.
        """


@runtime_checkable
class ReadsInputs(Protocol):
    """An adapter whose model reads images or videos and texts from outside a corpus, as an exported model does.

    Batches of model and adapter are as in training: `visual` and `visual_mask`, `text` and `text_mask`.
    """

    visual_dim: int
    """Width F of the features `(N, F)` of an image or video; 0 if the model reads files."""

    @abstractmethod
    def visual_inputs(self, visuals: Sequence[np.ndarray | str | Path]) -> VisualInputs:
        """Return the model's inputs for images or videos: features `(N, F)` of each, or image or video files.

        Raises:
            InputError: features of another shape, or a file that is missing or does not decode.
        """

    @abstractmethod
    def text_inputs(self, texts: Sequence[str]) -> TextInputs:
        """Return the model's inputs for texts."""


@runtime_checkable
class Answers(ReadsInputs, Protocol):
    """An adapter that answers questions about images with one of many choices."""

    choices: Sequence[str]
    """The A candidate answers, in the order of the model's outputs."""

    @abstractmethod
    def probabilities(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the probability of each answer to each question of a batch, `(B, A)`, float32.

        Args:
            model: in evaluation mode.
            batch: from the input methods, on the model's device: question b is about image b.
        """


@runtime_checkable
class Searchable(ReadsInputs, Protocol):
    """An adapter over a corpus of items that `search` shows and compares with texts and files.

    If it is also `Answers`, `search` asks questions about the items. Otherwise the data of a split must be
    `tasks.inputs.pairs.Pairs` and the model a `tasks.models.retrieval_model.RetrievalModel`; then texts find items, and
    items find texts.
    """

    modality: str
    """Modality of the items: `image` or `video`."""
    corpus: Corpus | QuestionCorpus
    """The items, by split."""
    store: FeatureStore | None
    """Features of the items; None if the model reads their files."""


def missing(adapter: object, protocol: type) -> list[str]:
    """Return the names of a protocol's attributes that an adapter lacks."""
    bases = [base for base in reversed(protocol.__mro__) if base.__module__ == __name__]
    names = [name for base in bases for name in (*base.__annotations__, *vars(base)) if name[0] != "_"]
    absent = object()
    return [name for name in names if inspect.getattr_static(adapter, name, absent) is absent]
