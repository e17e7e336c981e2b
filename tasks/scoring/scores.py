"""What scores a split block by block, so that whole score matrices never exist; and the mean of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tasks.base import Score


@runtime_checkable
class AllScores(Protocol):
    """A `Score` that compares items of one modality, too; models that only see pairs have none."""

    def __call__(self, images: slice, captions: slice) -> Tensor:
        """Return the scores of images against captions, a block `(images, captions)`."""

    def of_images(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of images against images, a block `(rows, columns)`."""

    def of_captions(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of captions against captions, a block `(rows, columns)`."""


@dataclass(frozen=True, kw_only=True)
class _Mean:
    between: Score
    of_images: Score
    of_captions: Score

    def __call__(self, images: slice, captions: slice) -> Tensor:
        return self.between(images, captions)


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the score function of an ensemble: the mean of its members' scores, in at least float32.

    Where all members compare items of one modality, so does the ensemble.
    """
    if not all(isinstance(member, AllScores) for member in scores):
        return _mean(scores)
    return _Mean(
        between=_mean(scores),
        of_images=_mean([member.of_images for member in scores]),
        of_captions=_mean([member.of_captions for member in scores]),
    )


def _mean(scores: Sequence[Score]) -> Score:
    def score(rows: slice, columns: slice) -> Tensor:
        blocks = (member(rows, columns) for member in scores)
        total = next(blocks)
        total = total.to(torch.promote_types(total.dtype, torch.float32))
        for block in blocks:
            total = total + block
        return total / len(scores)

    return score
