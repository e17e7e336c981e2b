"""Score functions, which compute a split's scores block by block, and the mean of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from polypool.tasks.adapter import Score


@runtime_checkable
class AllScores(Protocol):
    """A `Score` that compares items of one modality, too; models that only see pairs have none."""

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, a block `(images, captions)`."""

    def of_images(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of images against images, a block `(rows, columns)`."""

    def of_captions(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of captions against captions, a block `(rows, columns)`."""


@runtime_checkable
class PairsScore(Protocol):
    """A `Score` of a model that looks at every pair: it computes any of them without the rest."""

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, a block `(images, captions)`."""

    def of_all(self, row_V: np.ndarray, column_T: np.ndarray) -> Tensor:
        """Return the scores of some images against some captions, `(V, T)`."""

    def of_pairs(self, row_P: np.ndarray, column_P: np.ndarray) -> Tensor:
        """Return the scores of the p-th image with the p-th caption, `(P,)`."""


@dataclass(frozen=True, kw_only=True)
class _MeanOfPairs:
    between: Score
    of_all: Callable[[np.ndarray, np.ndarray], Tensor]
    of_pairs: Callable[[np.ndarray, np.ndarray], Tensor]

    def __call__(self, images: slice, captions: slice) -> Tensor:
        return self.between(images, captions)


@dataclass(frozen=True, kw_only=True)
class _Mean:
    between: Score
    of_images: Score
    of_captions: Score

    def __call__(self, images: slice, captions: slice) -> Tensor:
        return self.between(images, captions)


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the score function of an ensemble: the mean of its members' scores, in at least float32.

    Where all members compare items of one modality, or score single pairs, so does the ensemble.
    """
    alike = [member for member in scores if isinstance(member, AllScores)]
    if len(alike) == len(scores):
        return _Mean(
            between=_mean(scores),
            of_images=_mean([member.of_images for member in alike]),
            of_captions=_mean([member.of_captions for member in alike]),
        )
    pairs = [member for member in scores if isinstance(member, PairsScore)]
    if len(pairs) == len(scores):
        return _MeanOfPairs(
            between=_mean(scores),
            of_all=_mean([member.of_all for member in pairs]),
            of_pairs=_mean([member.of_pairs for member in pairs]),
        )
    return _mean(scores)


def _mean(scores: Sequence[Callable[..., Tensor]]) -> Callable[..., Tensor]:
    def score(rows: slice | np.ndarray, columns: slice | np.ndarray) -> Tensor:
        blocks = (member(rows, columns) for member in scores)
        total = next(blocks)
        total = total.to(torch.promote_types(total.dtype, torch.float32))
        for block in blocks:
            total = total + block
        return total / len(scores)

    return score
