"""Optional abilities of a task's adapter, as protocols that verbs other than `train` require."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from polypool.tasks.adapter import Evaluation, Score

if TYPE_CHECKING:  # what reads results alone, such as `compare`, waits for no torch
    import numpy as np
    from torch import Tensor, nn

    from polypool.infra.store import FeatureStore
    from polypool.tasks.datasets.corpus import Corpus, QuestionCorpus
    from polypool.tasks.inputs.texts import TextInputs
    from polypool.tasks.inputs.visuals import VisualInputs
    from polypool.tasks.scoring.scores import Bank


@runtime_checkable
class CountsWords(Protocol):
    """An adapter whose text encoder can be shared with other tasks, with a vocabulary of all their words."""

    @abstractmethod
    def counted_texts(self) -> Iterable[str]:
        """Return the texts whose words a new text encoder knows."""

    @abstractmethod
    def assets_for(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the adapter's assets with those of a text encoder that is made for other texts."""


class Pass(NamedTuple):
    """A part of a step: what is backpropagated, and what is logged of it."""

    loss: Tensor
    """A scalar whose gradient is added to those of the other passes."""
    terms: Mapping[str, Tensor] = MappingProxyType({})
    """Parts of the scalars that `TaskAdapter.loss` returns; their sums over all passes are those of the batch."""


@runtime_checkable
class Chunked(Protocol):
    """An adapter whose batches can pass the model in chunks, with the gradient of the whole (`--optim.chunk`)."""

    @abstractmethod
    def passes(
        self, model: nn.Module, batch: dict[str, Tensor], *, epoch: float, chunk: int
    ) -> Iterator[Pass]:
        """Yield passes; each is backpropagated before the next is computed.

        Together their gradients are that of `TaskAdapter.loss` of the whole batch, before the mean over workers.

        Args:
            model: as it is, not wrapped in DDP.
            batch: this worker's share of the batch; all workers hold equally many samples.
            epoch: epochs trained so far, as a fraction.
            chunk: samples that pass at once.
        """


@runtime_checkable
class Watchful(Protocol):
    """An adapter that recognises a collapsed model, so that a run is warned of it in its first epoch."""

    @abstractmethod
    def collapse(self, model: nn.Module, means: Mapping[str, float], *, first: Mapping[str, float]) -> str:
        """Return how a model has collapsed, by the means of what some steps logged; empty if it has not.

        Args:
            model: that is trained.
            means: of what the steps logged.
            first: what the run's first step logged; empty after a restart.
        """


@runtime_checkable
class Scores(Protocol):
    """An adapter that splits an evaluation in two, scores and what follows from them.

    `evaluate A B` averages the scores of several models before they are evaluated, and `evaluate --embeddings` changes
    them. A score is a function of two slices: rows are the images, videos or questions of a split, columns the captions
    or answers, and any block of the matrix can be had without the rest: `score(slice(0, 10), slice(None))`.
    """

    @abstractmethod
    def scorer(self, model: nn.Module, split: str) -> Score:
        """Return what computes any block of a split's scores `(rows, columns)`, float32; higher is better.

        Every worker calls this; each may then compute other blocks.
        """

    @abstractmethod
    def evaluate_scores(self, score: Score, split: str, protocol: str) -> Evaluation:
        """Evaluate a split by any such function; `evaluate` uses that of a model."""

    @abstractmethod
    def check_same_data(self, other: Any, split: str) -> None:
        """Check that another adapter of the same class has the same rows and columns of scores.

        Raises:
            InputError: it has not, so a mean of scores would be meaningless.
        """


@runtime_checkable
class Banks(Protocol):
    """An adapter some of whose protocols compare a split with the queries of the training split."""

    @abstractmethod
    def needs_bank(self, protocol: str) -> bool:
        """Whether a protocol is one of them; its `evaluate_scores` then takes a `tasks.scoring.scores.Banked`."""

    @abstractmethod
    def bank(self, model: nn.Module, split: str, *, protocol: str) -> Bank:
        """Return the scores of training queries with a split; every worker calls this.

        Args:
            model: in any mode.
            split: whose items and texts are the gallery.
            protocol: one that needs the bank.

        Raises:
            InputError: the model would take too long.
        """


@runtime_checkable
class ReadsInputs(Protocol):
    """An adapter whose model reads images or videos and texts from outside a corpus, as an exported model does.

    Model and adapter agree on the batches: `visual` and `visual_mask`, `text` and `text_mask`, as in training.
    """

    visual_dim: int
    """Width F of the features `(N, F)` that an image or video is given as; 0 where the model reads files."""

    @abstractmethod
    def visual_inputs(self, visuals: Sequence[np.ndarray | str | Path]) -> VisualInputs:
        """Return the model's inputs of images or videos: features `(N, F)` of each, or image or video files.

        Raises:
            InputError: features of another shape, or a file that is missing or does not decode.
        """

    @abstractmethod
    def text_inputs(self, texts: Sequence[str]) -> TextInputs:
        """Return the model's inputs of texts."""


@runtime_checkable
class Answers(ReadsInputs, Protocol):
    """An adapter that answers questions about images by one of many choices."""

    choices: Sequence[str]
    """The A answers that there are to choose from, in the order of the model's outputs."""

    @abstractmethod
    def probabilities(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the probability of each answer to each question of a batch, `(B, A)`, float32.

        Args:
            model: in evaluation mode.
            batch: as the inputs above make it, on the model's device: question b is about image b.
        """


@runtime_checkable
class Searchable(ReadsInputs, Protocol):
    """An adapter over a corpus of items that `search` shows and compares with texts and files.

    If it also is `Answers`, `search` asks questions about the items. Otherwise the data of a split must be
    `tasks.inputs.pairs.Pairs` and the model a `tasks.models.retrieval_model.RetrievalModel`; then items are
    found by text, and their texts by item.
    """

    modality: str
    """What the items are: `image` or `video`."""
    corpus: Corpus | QuestionCorpus
    """The items, by split."""
    store: FeatureStore | None
    """Features of the items; None where the model reads their files."""


def missing(adapter: object, protocol: type) -> list[str]:
    """Return the names of a protocol's attributes that an adapter lacks."""
    bases = [base for base in reversed(protocol.__mro__) if base.__module__ == __name__]
    names = [name for base in bases for name in (*base.__annotations__, *vars(base)) if name[0] != "_"]
    absent = object()
    return [name for name in names if inspect.getattr_static(adapter, name, absent) is absent]
