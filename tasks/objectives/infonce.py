"""InfoNCE over a batch's negatives, both directions, with a fixed temperature or CLIP's learned one.

van den Oord et al., "Representation learning with contrastive predictive coding", 2018; Radford et al., "Learning
transferable visual models from natural language supervision", ICML 2021, section 2.3 (CLIP).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.infra.fields import above, at_least, require
from polypool.infra.registry import MINERS, OBJECTIVES
from polypool.tasks.objectives.miners import BatchScores, MinedNegatives, Miner
from polypool.tasks.objectives.objective import Objective, lowest

LARGEST_SCALE = 100.0  # CLIP's bound on the factor of the scores, 1 / temperature


@OBJECTIVES.register("infonce")
class InfoNCE(Objective):
    """The cross-entropy of each pair against its negatives, averaged over the batch and the directions.

    A pair's competitors are only the negatives selected by a miner, by default all: other captions of its image, and
    duplicates of the image, are excluded from the sum, where CLIP includes them.

    A learned temperature is trained as the logarithm of the factor on the scores, `log_scale` = ln(1 / temperature),
    clipped to at most ln(100) before each use, as in CLIP; `temperature` is then logged. CLIP starts with
    `infonce(temperature=0.07, learned=True)`. AdamW's weight decay applies to it as to every parameter; CLIP does not
    decay scalars.

    Args:
        temperature: divides the scores; if learned, this is its initial value, at least 0.01.
        learned: train the temperature.
        negatives: the miner of a pair's competitors: `all`, `hard(k=5)`, `semi_hard`, `adopt_k`.
        margin: added to the scores of negatives.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.05,
        learned: bool = False,
        negatives: str = "all",
        margin: float = 0.0,
    ) -> None:
        super().__init__()
        require(above(0), temperature=temperature)
        if learned and temperature * LARGEST_SCALE < 1:
            raise InputError(
                f"a learned temperature must be at least {1 / LARGEST_SCALE}, not {temperature}: its factor on the "
                f"scores is clipped at {LARGEST_SCALE:g}"
            )
        require(at_least(0), margin=margin)
        self.temperature, self.margin = temperature, margin
        self.miner: Miner = MINERS.build(negatives)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature))) if learned else None

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        temperature = self.temperature if self.log_scale is None else _clipped(self.log_scale).neg().exp()
        scores = BatchScores.of(sim_VT / temperature, row_T, positive_VT, sim_VT=sim_VT)
        mined = self.miner.choose(scores)
        of_text, of_visual = (
            self._cost(scores.pair_T, side, temperature) for side in (mined.to_text, mined.to_visual)
        )
        terms = {"loss": (of_text + of_visual).mean() / 2, **mined.terms}
        if isinstance(temperature, Tensor):
            terms["temperature"] = temperature.detach()
        return terms

    @property
    def target_gap(self) -> float:
        return self.temperature if self.log_scale is None else math.exp(-float(self.log_scale.detach()))

    def _cost(self, pair_T: Tensor, chosen: MinedNegatives, temperature: float | Tensor) -> Tensor:
        """Return each pair's cross-entropy against its negatives of one direction, `(T,)`."""
        score_RN, weight_RN, of_T = chosen
        if weight_RN is not None:  # weights may be 0 everywhere in a row
            score_RN = (score_RN + weight_RN.log()).clamp(min=lowest(score_RN))
        rivals_R = score_RN.logsumexp(dim=1)
        rivals_T = rivals_R if of_T is None else rivals_R[of_T]
        if self.margin:
            rivals_T = rivals_T + self.margin / temperature
        return pair_T.logaddexp(rivals_T) - pair_T


def _clipped(log_scale: nn.Parameter) -> Tensor:
    """Clip a parameter in place: a clipped copy would have no gradient beyond the bound and could not return."""
    with torch.no_grad():
        log_scale.clamp_(max=math.log(LARGEST_SCALE))
    return log_scale
