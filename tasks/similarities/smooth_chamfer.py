"""Every element with all of the other set, the closest most (DivE, equation 6)."""

from __future__ import annotations

from torch import Tensor

from infra.registry import SIMILARITIES
from tasks.similarities.sets import SetSimilarity


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

        What `logsumexp` does, in fewer passes over memory: shifted by the maximum, no exponential overflows and never
        all vanish, whatever alpha and the embeddings.
        """
        top_QK1G, top_Q1LG = (scaled_QKLG.detach().amax(dim, keepdim=True) for dim in (2, 1))
        rows_QKG = (scaled_QKLG - top_QK1G).exp_().sum(dim=2).log().add_(top_QK1G.squeeze(2))
        columns_QLG = scaled_QKLG.sub_(top_Q1LG).exp_().sum(dim=1).log().add_(top_Q1LG.squeeze(1))
        return (rows_QKG.mean(dim=1) + columns_QLG.mean(dim=1)) / (2 * self.factor)
