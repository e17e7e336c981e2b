"""ADOPT: InfoNCE over a number of hardest negatives that decreases as the space matures (VSE+2AD, section 3.3)."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polypool.infra.fields import above, at_least, one_of, require
from polypool.infra.registry import MINERS, OBJECTIVES
from polypool.tasks.objectives.miners import BatchScores, Mined, MinedNegatives, Miner
from polypool.tasks.objectives.objective import Objective, lowest, pairs_and_negatives


def logsumexp_of_highest(
    score_VT: Tensor, k_row: Tensor, k_column: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the logsumexp of the k highest scores over the temperature, of each row `(V,)` and each column `(T,)`.

    Ties at the k-th place share its weight, so the result is that for exactly k scores. No tensor exceeds the size of
    the score matrix.

    Args:
        score_VT: scores.
        k_row: k for each row, from 1 to T; a scalar integer tensor, read on the host only on CPUs.
        k_column: k for each column, from 1 to V.
        temperature: divides the scores.
    """
    return _LogSumExpOfHighest.apply(score_VT, k_row, k_column, temperature)


class _LogSumExpOfHighest(torch.autograd.Function):
    """Saves the exponentials, which are the gradient."""

    @staticmethod
    def forward(
        ctx: Any, score_VT: Tensor, k_row: Tensor, k_column: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        row_VT, top_V1 = _exponentials(score_VT, k_row, temperature=temperature, dim=1)
        column_VT, top_1T = _exponentials(score_VT, k_column, temperature=temperature, dim=0)
        total_V1, total_1T = row_VT.sum(dim=1, keepdim=True), column_VT.sum(dim=0, keepdim=True)
        ctx.save_for_backward(row_VT, column_VT, total_V1 * temperature, total_1T * temperature)
        row_V1, column_1T = total_V1.log() + top_V1 / temperature, total_1T.log() + top_1T / temperature
        return row_V1.squeeze(1), column_1T.squeeze(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_V: Tensor, grad_T: Tensor) -> tuple[Tensor, None, None, None]:
        row_VT, column_VT, total_V1, total_1T = ctx.saved_tensors
        grad_VT = row_VT * (grad_V[:, None] / total_V1)
        return grad_VT.addcmul_(column_VT, grad_T / total_1T), None, None, None


def _exponentials(x_VT: Tensor, k: Tensor, *, temperature: float, dim: int) -> tuple[Tensor, Tensor]:
    """Return exp((x - maximum) / temperature) of the k highest values along a dimension, else 0; and the maxima."""
    top, spare_VT = (
        x_VT.amax(dim, keepdim=True),
        torch.empty(x_VT.shape, dtype=x_VT.dtype, device=x_VT.device),
    )
    weight_VT = shares_of_highest(x_VT, k, dim=dim, spare_VT=spare_VT)
    return torch.sub(x_VT, top, out=spare_VT).mul_(1 / temperature).exp_().mul_(weight_VT), top


def shares_of_highest(x_VT: Tensor, k: Tensor, *, dim: int, spare_VT: Tensor) -> Tensor:
    """Return a 0/1 mask of the k highest values; ties at the k-th place share its weight.

    Without gradient; `spare_VT` is overwritten.

    Computed by arithmetic on zeros and ones: masked selection is slow on CPUs, because its branches are unpredictable.
    """
    kth = kth_highest(x_VT, k, dim=dim, spare_VT=spare_VT).unsqueeze(dim)
    above_VT, reach_VT = (
        torch.gt(x_VT, kth, out=torch.empty_like(spare_VT)),
        torch.ge(x_VT, kth, out=spare_VT),
    )
    above, reach = above_VT.sum(dim, keepdim=True), reach_VT.sum(dim, keepdim=True)
    return above_VT.lerp_(reach_VT, (k - above) / (reach - above))


def kth_highest(x_VT: Tensor, k: Tensor, *, dim: int, spare_VT: Tensor) -> Tensor:
    """Return the k-th highest value along a dimension of a matrix, without gradient; `spare_VT` is overwritten.

    Accelerators sort, because selection would synchronise with the host to read k. On CPUs numpy's selection is about
    50 times faster than a sort.
    """
    if x_VT.device.type != "cpu":
        return x_VT.sort(dim=dim, descending=True).values.index_select(dim, k.view(1) - 1).squeeze(dim)
    x_BN = spare_VT.view(-1, x_VT.shape[dim]).copy_(x_VT if dim == 1 else x_VT.T).numpy()
    place = x_BN.shape[1] - int(k)
    parts = np.array_split(x_BN, torch.get_num_threads())
    list(_threads().map(lambda rows_BN: rows_BN.partition(place, axis=1), parts))
    return torch.from_numpy(x_BN[:, place].copy())


@lru_cache
def _threads() -> ThreadPoolExecutor:
    """Return a thread pool; numpy releases the GIL."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "partition")


@MINERS.register("adopt_k")
class AdoptK(Miner):
    """The K highest negatives of each row and column; K follows from alignment and uniformity of the batch.

    Source: VSE+2AD, section 3.3 (ADOPT).

    Ties at the K-th place share its weight. `negatives` (K), `alignment` and `uniformity` are logged.

    Args:
        scale: exponent of the code's rule.
        rule: with N candidates and `a` the mean score of pairs, `code`: K = trunc(N cos((a + u)^scale)) + 1, where u is
            the mean of exp(-score), positives counted as 1, and a negative a + u counts as 0; `paper`: K = floor(N
            cos((a + u) pi / 4)), where u is the logarithm of the mean of exp(score) (equation 6). K is clamped to
            [1, N - 1].
    """

    def __init__(self, *, scale: float = 1.25, rule: str = "code") -> None:
        require(one_of("code", "paper"), rule=rule)
        require(above(0), scale=scale)
        self.scale, self.rule = scale, rule

    def choose(self, scores: BatchScores) -> Mined:
        """Return all negatives, weighted by membership in the K highest."""
        negative_VT = scores.negative_VT
        k_text, k_visual, terms = self.count(scores.sim_VT, scores.row_T, scores.positive_VT)
        with torch.no_grad():
            row_VT, column_VT = (
                shares_of_highest(negative_VT, k, dim=dim, spare_VT=torch.empty_like(negative_VT))
                for k, dim in ((k_text, 1), (k_visual, 0))
            )
        return Mined(
            to_text=MinedNegatives(negative_VT, row_VT, scores.row_T),
            to_visual=MinedNegatives(negative_VT.T, column_VT.T),
            terms=terms,
        )

    @torch.no_grad()
    def count(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return K for texts and K for images or videos as integers on the device, and the logged terms.

        K is 1 if the scores are NaN.
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


@OBJECTIVES.register("adopt")
class Adopt(Objective):
    """The cross-entropy of each pair against its K hardest negatives; K follows from alignment and uniformity.

    Deviation from paper and code: a positive is never among the selected negatives. In the authors' code it takes part
    in the selection with a score of 0, and is selected if fewer than K negatives score above 0.

    Equivalent to `infonce(negatives=adopt_k, margin=0.2, temperature=0.05)`, with less memory; `AdoptK` determines K.

    Paper and code disagree on K, and only the code's rule makes K as small as in the paper's figure 2; it is the
    default. The paper's objective is `adopt(rule=paper, margin=0, positive_in_denominator=False,
    halve=False)`. In addition to the loss, K (`negatives`), `alignment` and `uniformity` are logged.

    Args:
        margin: added to the scores of negatives.
        temperature: divides the scores.
        scale: of the rule for K, see `AdoptK`.
        rule: for K, `code` or `paper`, see `AdoptK`.
        positive_in_denominator: whether a pair is one of its competitors, as in cross-entropy.
        halve: average both directions instead of adding them.
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        temperature: float = 0.05,
        scale: float = 1.25,
        rule: str = "code",
        positive_in_denominator: bool = True,
        halve: bool = True,
    ) -> None:
        super().__init__()
        require(above(0), temperature=temperature)
        require(at_least(0), margin=margin)
        self.margin, self.temperature = margin, temperature
        self.target_gap = temperature
        self.miner = AdoptK(scale=scale, rule=rule)
        self.positive_in_denominator, self.halve = positive_in_denominator, halve

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        pair_T, negative_VT = pairs_and_negatives(sim_VT, row_T, positive_VT)
        k_text, k_visual, terms = self.miner.count(sim_VT, row_T, positive_VT)
        row_V, column_T = logsumexp_of_highest(negative_VT, k_text, k_visual, temperature=self.temperature)
        loss = self._cost(pair_T, row_V[row_T]) + self._cost(pair_T, column_T)
        return {"loss": loss / 2 if self.halve else loss, **terms}

    def _cost(self, pair_T: Tensor, rivals_T: Tensor) -> Tensor:
        """Return the mean of the pairs' costs against the logsumexp of their negatives."""
        alone_T = rivals_T <= lowest(rivals_T) / 2
        pair_T, rivals_T = pair_T / self.temperature, rivals_T + self.margin / self.temperature
        if self.positive_in_denominator:
            rivals_T = pair_T.logaddexp(rivals_T)
        return (rivals_T - pair_T).masked_fill(alone_T, 0.0).mean()
