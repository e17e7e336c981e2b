"""ADOPT's K hardest negatives: fewer and fewer as the space matures (VSE+2AD, section 3.3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polypool.infra.errors import InputError
from polypool.infra.registry import MINERS
from polypool.tasks.objectives.hardest import shares_of_highest
from polypool.tasks.objectives.miners.miner import BatchScores, Chosen, Mined, Miner


@MINERS.register("adopt_k")
class AdoptK(Miner):
    """The K highest negatives of each row and column; K follows from alignment and uniformity of the batch.

    Where several tie for the last places, each counts for its share of them. `negatives` (K), `alignment` and
    `uniformity` are logged.

    Args:
        scale: exponent of the code's rule.
        rule: with N candidates and `a` the mean score of pairs, `code`: K = trunc(N cos((a + u)^scale)) + 1, where u
            is the mean of exp(-score), positives counted as 1; `paper`: K = floor(N cos((a + u) pi / 4)), where u
            is the logarithm of the mean of exp(score) (equation 6). K is then kept within 1 and N - 1.
    """

    def __init__(self, *, scale: float = 1.25, rule: str = "code") -> None:
        if rule not in ("code", "paper"):
            raise InputError(f"rule must be 'code' or 'paper', not {rule!r}")
        if not scale > 0:
            raise InputError(f"scale must be above 0, not {scale}")
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
