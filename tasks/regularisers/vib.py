"""Distributions near N(0, I): the variational information bottleneck (Alemi et al. 2017; PCME++, Chun, ICLR 2024)."""

from __future__ import annotations

from torch import Tensor

from polypool.infra.registry import REGULARISERS
from polypool.tasks.regularisers.regulariser import Regulariser
from polypool.tasks.similarities.vectors import Embeddings, mean_and_log_variance


@REGULARISERS.register("vib")
class VIB(Regulariser):
    """The divergence of each distribution from N(0, I), the mean over a modality's items, summed over both.

    It keeps variances from vanishing. A divergence is a sum over channels; here it is their mean, as in PCME++'s code,
    since the published weight of 1e-4 goes with that. That code leaves the term out where it exceeds 10,000; here it
    stays, as its gradient is what brings it down.

    Args:
        weight: of the term in the loss.
    """

    name = "vib"
    of_distributions = True

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the sum of both modalities' divergences, a scalar.

        Raises:
            InputError: these are no distributions.
        """
        one, other = (_divergence(*mean_and_log_variance(side.vectors)) for side in (visual, text))
        return one + other


def _divergence(mean_BD: Tensor, log_variance_BD: Tensor) -> Tensor:
    """Return KL(N(mean, variance) || N(0, I)) by channel, averaged over channels and items."""
    return (mean_BD.square() + log_variance_BD.exp() - 1 - log_variance_BD).mean() / 2
