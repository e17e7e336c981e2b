"""The mean probability that two elements match (PCME, Chun et al. 2021; DivE, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.sets import SetSimilarity


@SIMILARITIES.register("match_probability")
class MatchProbability(SetSimilarity):
    """The mean of `sigmoid(scale * cosine + shift)` over all pairs of elements; scale and shift are learned.

    DivE's paper writes a sum; its code, and PCME, take the mean.

    Args:
        scale: its first value.
        shift: its first value.
    """

    def __init__(self, *, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.shift = nn.Parameter(torch.tensor(float(shift)))

    def combine(self, cosine_QKLG: Tensor) -> Tensor:
        return (self.scale * cosine_QKLG + self.shift).sigmoid().mean(dim=(1, 2))
