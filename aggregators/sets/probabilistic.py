"""A diagonal Gaussian per set: PCME++ (Chun, "Improved probabilistic image-text representations", ICLR 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled, one_vector_aggregator
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("probabilistic")
class Probabilistic(Aggregator):
    """Mean and per-channel log-variance of a Gaussian embedding; the variance expresses ambiguity.

    Another aggregator computes the mean. The log-variance has a separate head, as in the authors' code: a linear map of
    the elements, then GPO with separate weights, without normalisation. It is computed in the precision of its weights,
    also under autocast, because its exponential is taken later. The authors' `std` is this log-variance, not the
    logarithm of the standard deviation, as their KL divergence shows.

    Omitted: the transformer layer that the authors put before this map, a copy of CLIP's last one, which belongs to
    their encoders; and mixed sample augmentation (MSDA), whose soft labels batches here do not have.

    Args:
        dim: width of the elements.
        mean: spec of the aggregator that computes the mean.
        start: initial bias of the linear map, and so about the initial log-variance of every channel. 0 in the authors'
            code or, according to its comments, -4 or -10. The sum of variances over the channels is added to squared
            distances of at most 4; where it dominates, every pair is predicted as a mismatch, no gradient separates the
            means, and they can collapse.
    """

    num_embeddings = 2
    makes = "distribution"

    def __init__(self, dim: int, *, mean: str = "gpo", start: float = -10.0) -> None:
        super().__init__()
        self.mean = one_vector_aggregator(mean, dim, parameter="mean")
        self.width, self.symmetric = self.mean.width, self.mean.symmetric
        self.weights_over = "ranks" if self.mean.weights_over == "ranks" else "elements"
        self.linear = nn.Linear(dim, self.width or dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.constant_(self.linear.bias, start)
        self.pool = GPO(self.width or dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return mean and log-variance `(B, 2, D)`, and the pooling weights of the mean."""
        pooled = self.mean(x_BND, mask_BN)
        mean_BD, weights = pooled.vectors, pooled.weights
        if weights is not None and self.mean.weights_over == "embeddings":
            weights = weights.squeeze(1)
        with torch.autocast(x_BND.device.type, enabled=False):
            x_BND = zero_pads(x_BND, mask_BN).to(self.linear.weight.dtype)
            log_variance_BD = self.pool(self.linear(x_BND), mask_BN).vectors
            wide = torch.promote_types(mean_BD.dtype, log_variance_BD.dtype)
            vectors_B2D = torch.stack((mean_BD.to(wide), log_variance_BD.to(wide)), dim=1)
        return Pooled(vectors_B2D, weights=weights)
