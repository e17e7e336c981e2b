"""A Gaussian of each set: PCME++ (Chun, "Improved probabilistic image-text representations", ICLR 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import zero_pads
from polypool.aggregators.ranks.gpo import GPO
from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("probabilistic")
class Probabilistic(Aggregator):
    """A mean, and the logarithm of a variance for each channel: how sure a set can be of what it is matched with.

    The mean comes from another aggregator. The log-variance has, as in the authors' code, a separate head: a
    linear map of the elements, then GPO with separate weights, without normalisation; it is computed in the
    precision of its weights, also under autocast, since all that follows takes its exponential. The authors' `std` is
    this logarithm of the variance, not of the deviation: as in their KL divergence.

    Left out: the layer of a transformer that the authors put before this map, a copy of CLIP's last one, which belongs
    to their encoders; and mixed samples (MSDA), whose soft labels no batch here has.

    Args:
        dim: width of the elements.
        mean: the aggregator that makes the mean.
        start: the bias of the linear map at first, and so about the log-variance of every channel. In the authors' code
            it is 0 or, as notes beside it say, -4 or -10. Their sum over channels is added to squared distances of at
            most 4: where it is more, every pair looks like a no, nothing pushes means apart, and they can end as one.
    """

    num_embeddings = 2
    makes = "distribution"

    def __init__(self, dim: int, *, mean: str = "gpo", start: float = -10.0) -> None:
        super().__init__()
        self.mean: Aggregator = AGGREGATORS.build(mean, dim)
        if self.mean.num_embeddings != 1 or self.mean.context != "none" or self.mean.takes_global_feature:
            raise InputError(
                f"mean={mean} does not make one vector of a set alone; choose one such as gpo, mean or map(k=1)"
            )
        self.width, self.symmetric = self.mean.width, self.mean.symmetric
        self.weights_over = "ranks" if self.mean.weights_over == "ranks" else "elements"
        self.linear = nn.Linear(dim, self.width or dim)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.constant_(self.linear.bias, start)
        self.pool = GPO(self.width or dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the mean and the log-variance, `(B, 2, D)`, and the weights by which the mean was pooled."""
        mean_BD, _, weights = self.mean(x_BND, mask_BN)
        if weights is not None and self.mean.weights_over == "embeddings":
            weights = weights.squeeze(1)
        with torch.autocast(x_BND.device.type, enabled=False):
            x_BND = zero_pads(x_BND, mask_BN).to(self.linear.weight.dtype)
            log_variance_BD = self.pool(self.linear(x_BND), mask_BN).vectors
            wide = torch.promote_types(mean_BD.dtype, log_variance_BD.dtype)
            vectors_B2D = torch.stack((mean_BD.to(wide), log_variance_BD.to(wide)), dim=1)
        return Pooled(vectors_B2D, weights=weights)
