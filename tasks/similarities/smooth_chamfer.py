"""Every element with all of the other set, the closest most (DivE, equation 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from polypool.infra.registry import SIMILARITIES
from polypool.tasks.similarities.sets import SetSimilarity

FAINT = -80.0
"""Logarithm of what float32 still holds with all its digits, with room for a sum."""


@SIMILARITIES.register("smooth_chamfer")
class SmoothChamfer(SetSimilarity):
    """Chamfer similarity with `log(sum(exp(alpha * cosine))) / alpha` for the maximum.

    It is not bounded by one: two sets of K equal elements score 1 + ln(K) / alpha.

    Args:
        alpha: how sharply the closest element stands out; as it grows, the result nears `chamfer`.
    """

    def __init__(self, *, alpha: float = 16.0) -> None:
        super().__init__()
        if not alpha > 0:
            raise ValueError(f"alpha must be above 0, not {alpha}")
        self.factor = alpha

    def combine(self, scaled_QKLG: Tensor) -> Tensor:
        """Return the mean of both directions, `(Q, G)`; `scaled_QKLG` is overwritten.

        What `logsumexp` does, in fewer passes over memory. Shifted by the largest of two sets' cosines, one exponential
        serves both directions. Only where alpha or the embeddings are so large that those of an element could vanish,
        is each element's shifted by its own largest.
        """
        top_QG = scaled_QKLG.detach().amax((1, 2))
        exp_QKLG = (scaled_QKLG - top_QG[:, None, None]).exp_()
        rows_QKG, columns_QLG = (exp_QKLG.sum(dim).log() for dim in (2, 1))
        if torch.minimum(rows_QKG.amin(), columns_QLG.amin()) < FAINT:
            del exp_QKLG
            return self._apart(scaled_QKLG)
        return (rows_QKG.mean(dim=1) + columns_QLG.mean(dim=1)).add_(top_QG, alpha=2) / (2 * self.factor)

    def _apart(self, scaled_QKLG: Tensor) -> Tensor:
        """Return the same; no exponential overflows, and never all of an element's vanish."""
        top_QK1G, top_Q1LG = (scaled_QKLG.detach().amax(dim, keepdim=True) for dim in (2, 1))
        rows_QKG = (scaled_QKLG - top_QK1G).exp_().sum(dim=2).log().add_(top_QK1G.squeeze(2))
        columns_QLG = scaled_QKLG.sub_(top_Q1LG).exp_().sum(dim=1).log().add_(top_Q1LG.squeeze(1))
        return (rows_QKG.mean(dim=1) + columns_QLG.mean(dim=1)) / (2 * self.factor)
