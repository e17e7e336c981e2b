"""Score functions, which compute a split's scores block by block, and their means for ensembles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.tasks.adapter import Score
from polypool.tasks.models.dual_encoder import SplitEmbeddings


@runtime_checkable
class AllScores(Protocol):
    """A `Score` that also compares items within one modality, which models of pairs cannot."""

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, a block `(images, captions)`."""

    def of_images(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of images against images, a block `(rows, columns)`."""

    def of_captions(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of captions against captions, a block `(rows, columns)`."""


@runtime_checkable
class PairsScore(Protocol):
    """A `Score` of a cross-encoder: it computes any subset of images and captions."""

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        """Return the scores of some images against some captions, `(V, T)`."""


@dataclass(frozen=True, kw_only=True)
class QueryBank:
    """The scores of training queries with a split.

    Attributes:
        items: of training images or videos against the split's captions.
        captions: of the split's images or videos against training captions.
        sizes: numbers of training images or videos, and of captions.
    """

    items: Score
    captions: Score
    sizes: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ScoreWithBank:
    """A `Score` with a bank of training queries."""

    score: Score
    bank: QueryBank

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, a block `(images, captions)`."""
        return self.score(images, captions)


def first_vectors(score: Score, k: int) -> Score:
    """Return the scores by the first `k` vectors of each set, including a bank's; by whole sets if `k` is 0.

    Raises:
        InputError: the scores are not of sets or are an ensemble's, or there are fewer vectors.
    """
    if not k:
        return score
    if isinstance(score, ScoreWithBank):
        bank = score.bank
        items, captions = first_vectors(bank.items, k), first_vectors(bank.captions, k)
        return ScoreWithBank(
            score=first_vectors(score.score, k), bank=replace(bank, items=items, captions=captions)
        )
    if not isinstance(score, SplitEmbeddings):
        raise InputError(
            "--vectors needs a single model that encodes images and captions separately; score ensembles and models of "
            "pairs without it"
        )
    return score.first(k)


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the score function of an ensemble: the mean of its members' scores, in at least float32.

    A single score is returned unchanged. The ensemble supports within-modality scores, or subsets of images and
    captions, if all members do.
    """
    if len(scores) == 1:
        return scores[0]
    mean = _mean(scores)
    for name in ("of_images", "of_captions", "of_all"):  # methods of `AllScores` and of `PairsScore`
        if all(hasattr(member, name) for member in scores):
            setattr(mean, name, _mean([getattr(member, name) for member in scores]))
    return mean


def mean_bank(banks: Sequence[QueryBank]) -> QueryBank:
    """Return the bank of an ensemble on the same data: the mean of its members' scores."""
    return QueryBank(
        items=mean_score([bank.items for bank in banks]),
        captions=mean_score([bank.captions for bank in banks]),
        sizes=banks[0].sizes,
    )


def _mean(scores: Sequence[Callable[..., Tensor]]) -> Callable[..., Tensor]:
    def score(rows: slice | np.ndarray, columns: slice | np.ndarray) -> Tensor:
        blocks = (member(rows, columns) for member in scores)
        total = next(blocks)
        total = total.to(torch.promote_types(total.dtype, torch.float32))
        for block in blocks:
            total = total + block
        return total / len(scores)

    return score
