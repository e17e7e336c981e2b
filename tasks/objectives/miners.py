"""Miners: selection of a batch's negatives for an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from polypool.infra.fields import at_least, require
from polypool.infra.registry import MINERS
from polypool.tasks.objectives.objective import lowest, pairs_and_negatives


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """The scores of the global batch, and which of them are positives.

    Attributes:
        pair_T: each text's score with the row that it was drawn with, `(T,)`.
        negative_VT: candidate scores, the dtype's lowest number at positives, from `pairs_and_negatives`.
        row_T: the row of each text.
        positive_VT: True where a row and a column match.
        sim_VT: the model's scores, without gradient. An objective with a temperature has divided the others by it,
            which preserves their order.
    """

    pair_T: Tensor
    negative_VT: Tensor
    row_T: Tensor
    positive_VT: Tensor
    sim_VT: Tensor

    @classmethod
    def of(cls, scaled_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, sim_VT: Tensor) -> BatchScores:
        """Split scores into pairs and negatives; `scaled_VT` are the objective's scaled scores."""
        pair_T, negative_VT = pairs_and_negatives(scaled_VT, row_T, positive_VT)
        return cls(
            pair_T=pair_T,
            negative_VT=negative_VT,
            row_T=row_T,
            positive_VT=positive_VT,
            sim_VT=sim_VT.detach(),
        )


class MinedNegatives(NamedTuple):
    """The selected negatives of one direction, with gradient.

    Attributes:
        score_RN: scores of N negatives per row, `(R, N)`; the dtype's lowest number for none.
        weight_RN: weight of each from 0 to 1, without gradient; None for equal weights.
        of_T: the row r of each pair, `(T,)`; None if rows are the pairs, in order.
    """

    score_RN: Tensor
    weight_RN: Tensor | None = None
    of_T: Tensor | None = None

    def of_pairs(self) -> MinedNegatives:
        """Return the same with a row for each pair, `(T, N)`."""
        if self.of_T is None:
            return self
        weight = None if self.weight_RN is None else self.weight_RN[self.of_T]
        return MinedNegatives(self.score_RN[self.of_T], weight)


@dataclass(frozen=True, kw_only=True)
class Mined:
    """The selected negatives of both directions.

    Attributes:
        to_text: texts that do not match each pair's image.
        to_visual: images or videos that do not match each pair's text.
        terms: scalars to log, such as their number.
    """

    to_text: MinedNegatives
    to_visual: MinedNegatives
    terms: dict[str, Tensor] = field(default_factory=dict)


class Miner(ABC):
    """Selects among the negatives of the global batch, for `triplet(negatives=...)` and `infonce(negatives=...)`.

    It has no parameters, no state between batches, and does not synchronise with the device. Positives are the dtype's
    lowest number in `negative_VT` and may be returned as such: they then add nothing to a loss. Spec strings set its
    keyword-only parameters::

        @MINERS.register("above")
        class Above(Miner):
            def __init__(self, *, score: float = 0.5) -> None:
                self.score = score

            def choose(self, scores: BatchScores) -> Mined:
                negative_VT = scores.negative_VT
                weight_VT = (scores.sim_VT > self.score).to(negative_VT)
                return Mined(
                    to_text=MinedNegatives(negative_VT, weight_VT, scores.row_T),
                    to_visual=MinedNegatives(negative_VT.T, weight_VT.T),
                )
    """

    @abstractmethod
    def choose(self, scores: BatchScores) -> Mined:
        """Return the selected negatives of each pair."""


@MINERS.register("all")
class All(Miner):
    """All negatives."""

    def choose(self, scores: BatchScores) -> Mined:
        return Mined(
            to_text=MinedNegatives(scores.negative_VT, of_T=scores.row_T),
            to_visual=MinedNegatives(scores.negative_VT.T),
        )


@MINERS.register("hard")
class Hard(Miner):
    """The highest negatives of each row and column (VSE++, Faghri et al., BMVC 2018, equation 6).

    Args:
        k: number of negatives; all if there are fewer.
    """

    def __init__(self, *, k: int = 1) -> None:
        require(at_least(1), k=k)
        self.k = k

    def choose(self, scores: BatchScores) -> Mined:
        return Mined(
            to_text=MinedNegatives(self._highest(scores.negative_VT), of_T=scores.row_T),
            to_visual=MinedNegatives(self._highest(scores.negative_VT.T)),
        )

    def _highest(self, negative_RN: Tensor) -> Tensor:
        if self.k == 1:
            return negative_RN.max(dim=1, keepdim=True).values
        return negative_RN.topk(min(self.k, negative_RN.shape[1]), dim=1).values


@MINERS.register("semi_hard")
class SemiHard(Miner):
    """The highest negative below each positive; if every negative reaches the positive, the lowest of them.

    Source: FaceNet (Schroff et al., CVPR 2015).
    """

    def choose(self, scores: BatchScores) -> Mined:
        negative_VT, pair_T = scores.negative_VT, scores.pair_T
        return Mined(
            to_text=MinedNegatives(_semi_hard(pair_T, negative_VT[scores.row_T])[:, None]),
            to_visual=MinedNegatives(_semi_hard(pair_T, negative_VT.T)[:, None]),
        )


def _semi_hard(pair_T: Tensor, negative_TN: Tensor) -> Tensor:
    none = lowest(negative_TN)
    below_T = negative_TN.masked_fill(negative_TN >= pair_T[:, None], none).max(dim=1).values
    easiest_T = negative_TN.masked_fill(negative_TN == none, -none).min(dim=1).values
    easiest_T = easiest_T.masked_fill(easiest_T == -none, none)
    return easiest_T.where(below_T == none, below_T)
