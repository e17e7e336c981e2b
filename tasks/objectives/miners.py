"""Miners: which of a batch's negatives an objective looks at."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.fields import above, one_of, require
from polypool.infra.registry import MINERS
from polypool.tasks.objectives.hardest import shares_of_highest
from polypool.tasks.objectives.objective import lowest, pairs_and_negatives


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """What there is to choose from: the scores of the global batch, and which of them belong together.

    Attributes:
        pair_T: each text's score with the row that it was drawn with, `(T,)`.
        negative_VT: scores to choose from, the dtype's lowest number at positives, as `pairs_and_negatives` makes them.
        row_T: the row of each text.
        positive_VT: True where a row and a column belong together.
        sim_VT: the scores as the model gives them. An objective with a temperature has divided the others by it, which
            changes nothing of their order.
    """

    pair_T: Tensor
    negative_VT: Tensor
    row_T: Tensor
    positive_VT: Tensor
    sim_VT: Tensor

    @classmethod
    def of(cls, scaled_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, sim_VT: Tensor) -> BatchScores:
        """Split scores into those of the pairs and the negatives; `scaled_VT` are what an objective makes of them."""
        pair_T, negative_VT = pairs_and_negatives(scaled_VT, row_T, positive_VT)
        return cls(
            pair_T=pair_T,
            negative_VT=negative_VT,
            row_T=row_T,
            positive_VT=positive_VT,
            sim_VT=sim_VT.detach(),
        )


class Chosen(NamedTuple):
    """The negatives of one direction that count, with their gradient.

    Attributes:
        score_RN: the scores of N of each row, `(R, N)`; the dtype's lowest number where there is none.
        weight_RN: how much each counts, from 0 to 1, without gradient; None where all do.
        of_T: the row r of each pair, `(T,)`; None where the rows are the pairs, in order.
    """

    score_RN: Tensor
    weight_RN: Tensor | None = None
    of_T: Tensor | None = None

    def of_pairs(self) -> Chosen:
        """Return the same with a row for each pair, `(T, N)`."""
        if self.of_T is None:
            return self
        weight = None if self.weight_RN is None else self.weight_RN[self.of_T]
        return Chosen(self.score_RN[self.of_T], weight)


@dataclass(frozen=True, kw_only=True)
class Mined:
    """The negatives that count in both directions.

    Attributes:
        to_text: texts that do not belong to each pair's image.
        to_visual: images or videos that do not belong to each pair's text.
        terms: scalars to log, such as how many they are.
    """

    to_text: Chosen
    to_visual: Chosen
    terms: dict[str, Tensor] = field(default_factory=dict)


class Miner(ABC):
    """Chooses among the negatives of the global batch, for `triplet(negatives=...)` and `infonce(negatives=...)`.

    It learns nothing, keeps nothing between batches, and waits for no device. Positives stand in `negative_VT` as the
    dtype's lowest number and may be returned as that: they then add nothing to a loss. Spec strings set its
    keyword-only parameters::

        @MINERS.register("above")
        class Above(Miner):
            def __init__(self, *, score: float = 0.5) -> None:
                self.score = score

            def choose(self, scores: BatchScores) -> Mined:
                negative_VT = scores.negative_VT
                weight_VT = (scores.sim_VT > self.score).to(negative_VT)
                return Mined(
                    to_text=Chosen(negative_VT, weight_VT, scores.row_T), to_visual=Chosen(negative_VT.T, weight_VT.T)
                )
    """

    @abstractmethod
    def choose(self, scores: BatchScores) -> Mined:
        """Return the negatives that count for each pair."""


@MINERS.register("all")
class All(Miner):
    """All negatives count."""

    def choose(self, scores: BatchScores) -> Mined:
        return Mined(
            to_text=Chosen(scores.negative_VT, of_T=scores.row_T), to_visual=Chosen(scores.negative_VT.T)
        )


@MINERS.register("hard")
class Hard(Miner):
    """The highest negatives of each row and column (VSE++, Faghri et al., BMVC 2018, equation 6).

    Args:
        k: how many of them; all, where there are fewer.
    """

    def __init__(self, *, k: int = 1) -> None:
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}")
        self.k = k

    def choose(self, scores: BatchScores) -> Mined:
        return Mined(
            to_text=Chosen(self._highest(scores.negative_VT), of_T=scores.row_T),
            to_visual=Chosen(self._highest(scores.negative_VT.T)),
        )

    def _highest(self, negative_RN: Tensor) -> Tensor:
        if self.k == 1:
            return negative_RN.max(dim=1, keepdim=True).values
        return negative_RN.topk(min(self.k, negative_RN.shape[1]), dim=1).values


@MINERS.register("semi_hard")
class SemiHard(Miner):
    """The highest negative below each positive; where every negative reaches the positive, the lowest of them.

    Source: FaceNet (Schroff et al., CVPR 2015).
    """

    def choose(self, scores: BatchScores) -> Mined:
        negative_VT, pair_T = scores.negative_VT, scores.pair_T
        return Mined(
            to_text=Chosen(_semi_hard(pair_T, negative_VT[scores.row_T])[:, None]),
            to_visual=Chosen(_semi_hard(pair_T, negative_VT.T)[:, None]),
        )


def _semi_hard(pair_T: Tensor, negative_TN: Tensor) -> Tensor:
    none = lowest(negative_TN)
    below_T = negative_TN.masked_fill(negative_TN >= pair_T[:, None], none).max(dim=1).values
    easiest_T = negative_TN.masked_fill(negative_TN == none, -none).min(dim=1).values
    easiest_T = easiest_T.masked_fill(easiest_T == -none, none)
    return easiest_T.where(below_T == none, below_T)


@MINERS.register("adopt_k")
class AdoptK(Miner):
    """The K highest negatives of each row and column; K follows from alignment and uniformity of the batch.

    Source: VSE+2AD, section 3.3 (ADOPT).

    Where several tie for the last places, each counts for its share of them. `negatives` (K), `alignment` and
    `uniformity` are logged.

    Args:
        scale: exponent of the code's rule.
        rule: with N candidates and `a` the mean score of pairs, `code`: K = trunc(N cos((a + u)^scale)) + 1, where u
            is the mean of exp(-score), positives counted as 1; `paper`: K = floor(N cos((a + u) pi / 4)), where u
            is the logarithm of the mean of exp(score) (equation 6). K is then kept within 1 and N - 1.
    """

    def __init__(self, *, scale: float = 1.25, rule: str = "code") -> None:
        require(one_of("code", "paper"), rule=rule)
        require(above(0), scale=scale)
        self.scale, self.rule = scale, rule

    def choose(self, scores: BatchScores) -> Mined:
        """Return all negatives, weighed by whether they are among the K highest."""
        negative_VT = scores.negative_VT
        k_text, k_visual, terms = self.count(scores.sim_VT, scores.row_T, scores.positive_VT)
        with torch.no_grad():
            row_VT, column_VT = (
                shares_of_highest(negative_VT, k, dim=dim, spare_VT=torch.empty_like(negative_VT))
                for k, dim in ((k_text, 1), (k_visual, 0))
            )
        return Mined(
            to_text=Chosen(negative_VT, row_VT, scores.row_T),
            to_visual=Chosen(negative_VT.T, column_VT.T),
            terms=terms,
        )

    @torch.no_grad()
    def count(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return K of texts and K of images or videos, whole, on the device, and what is logged of them.

        They are 1 where the scores are not numbers.
        """
        alignment = sim_VT.gather(0, row_T[None]).mean()
        uniformity = self._uniformity(sim_VT, positive_VT)
        k_text, k_visual = (self._k(alignment, uniformity, sim_VT.shape[dim]) for dim in (1, 0))
        logged = {"negatives": (k_text + k_visual) / 2, "alignment": alignment, "uniformity": uniformity}
        return k_text, k_visual, logged

    def _uniformity(self, sim_VT: Tensor, positive_VT: Tensor) -> Tensor:
        if self.rule == "paper":
            return sim_VT.exp().mean().log()
        return sim_VT.neg().exp_().masked_fill_(positive_VT, 1.0).mean()

    def _k(self, alignment: Tensor, uniformity: Tensor, candidates: int) -> Tensor:
        maturity = alignment + uniformity
        if self.rule == "paper":
            k = (candidates * (maturity * math.pi / 4).cos()).floor()
        else:
            k = (candidates * (maturity.clamp(min=0) ** self.scale).cos()).trunc() + 1
        return k.nan_to_num(nan=1.0).clamp(1, max(1, candidates - 1)).long()
