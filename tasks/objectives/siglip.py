"""The sigmoid loss (Zhai et al., "Sigmoid loss for language image pre-training", ICCV 2023; SigLIP)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.infra.registry import OBJECTIVES
from polypool.tasks.objectives.objective import Objective


@OBJECTIVES.register("siglip")
class SigmoidLoss(Objective):
    """A yes or no of every image with every text, `-log(sigmoid(z * (scale * score + bias)))`; z is 1, or -1 for a no.

    The sum over the matrix is divided by the number of texts, which is that of the pairs. All of `positive_VT` are a
    yes: other captions of an image, and an image drawn twice. The paper's z knows the diagonal alone.

    Scale, as `log_scale`, and `bias` are learned. The bias begins far below zero, since nearly all of the matrix is a
    no, and without it the first steps would only correct that. Both are logged beside the loss.

    Args:
        scale: the first value of the factor on the scores; the paper's is 10.
        bias: the first value of what is added to them; the paper's is -10.
    """

    def __init__(self, *, scale: float = 10.0, bias: float = -10.0) -> None:
        super().__init__()
        if not scale > 0:
            raise InputError(f"scale must be above 0, not {scale}")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    @property
    def strives_for(self) -> float:
        return math.exp(-float(self.log_scale.detach()))

    def forward(
        self, sim_VT: Tensor, row_T: Tensor, positive_VT: Tensor, *, epoch: float
    ) -> dict[str, Tensor]:
        scale = self.log_scale.exp()
        logit_VT = scale * sim_VT + self.bias
        loss = -F.logsigmoid(logit_VT.where(positive_VT, -logit_VT)).sum() / len(row_T)
        return {"loss": loss, "scale": scale.detach(), "bias": self.bias.detach()}
