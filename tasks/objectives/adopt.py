"""ADOPT: InfoNCE over fewer and fewer of the hardest negatives as the space matures (VSE+2AD, section 3.3)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.fields import above, at_least, require
from polypool.infra.registry import OBJECTIVES
from polypool.tasks.objectives.hardest import logsumexp_of_highest
from polypool.tasks.objectives.miners import AdoptK
from polypool.tasks.objectives.objective import Objective, lowest, pairs_and_negatives


@OBJECTIVES.register("adopt")
class Adopt(Objective):
    """The cross-entropy of each pair against its K hardest negatives; K follows from alignment and uniformity.

    Deviation from both: a positive is never among the negatives that are chosen. In the authors' code it takes part in
    that choice with a score of 0, and is drawn where fewer than K negatives score above 0.

    It is `infonce(negatives=adopt_k, margin=0.2, temperature=0.05)`, in less memory; `AdoptK` chooses K.

    Paper and code disagree on K, and only the code's rule makes K as small as the paper's figure 2 shows; it is the
    default. The paper's objective is `adopt(rule=paper, margin=0, positive_in_denominator=False, halve=False)`.
    Beside the loss, K (`negatives`), `alignment` and `uniformity` are logged.

    Args:
        margin: added to the scores of negatives.
        temperature: divides the scores.
        scale: of the rule for K, see `AdoptK`.
        rule: for K, `code` or `paper`, likewise.
        positive_in_denominator: whether a pair is one of its own competitors, as in cross-entropy.
        halve: average both directions rather than add them.
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

    @property
    def strives_for(self) -> float:
        return self.temperature

    def advice(self, *, epoch: float) -> tuple[str, ...]:
        return (f"another temperature than {self.temperature:.3g}", "infonce, of all negatives")

    def _cost(self, pair_T: Tensor, rivals_T: Tensor) -> Tensor:
        """Return the mean of the pairs' costs against the logsumexp of their negatives."""
        alone_T = rivals_T <= lowest(rivals_T) / 2
        pair_T, rivals_T = pair_T / self.temperature, rivals_T + self.margin / self.temperature
        if self.positive_in_denominator:
            rivals_T = pair_T.logaddexp(rivals_T)
        return (rivals_T - pair_T).masked_fill(alone_T, 0.0).mean()
