"""Regularisers: scalar functions of the embeddings of the global batch, added to the objective."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from polypool.infra.errors import InputError
from polypool.infra.fields import above, at_least, one_of, require
from polypool.infra.registry import REGULARISERS
from polypool.tasks.similarities.vectors import Embeddings, l2_normalise, mean_and_log_variance


class Regulariser(nn.Module, ABC):
    """A loss term on embeddings instead of scores; a model may have several.

    Like an objective, it sees the global batch on every worker, outside autocast and in at least float32. Learned
    values are `nn.Parameter`s, named `regularisers.<index>.<name>` in the model. Models without separate embeddings of
    each modality do not support regularisers.

    Args:
        weight: of the term in the loss, at least 0.
    """

    name: str
    """Name of the term in the log."""
    of_distributions: bool = False
    """Whether it takes Gaussians (mean and log-variance) instead of vectors or sets; a model refuses a regulariser of
    the other kind."""

    def __init__(self, *, weight: float) -> None:
        super().__init__()
        require(at_least(0), weight=weight)
        self.weight = weight

    @abstractmethod
    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the unweighted term of the global batch, a scalar, which is logged under `name`.

        Args:
            visual: of V images or videos: vectors `(V, D)` or `(V, K, D)`, and the residual if there is one;
                distributions `(V, 2, D)` with `of_distributions`.
            text: of T captions, in the same form.
        """


class WithinSets(Regulariser):
    """A regulariser of distances between the elements of a set: the mean over sets, summed over modalities.

    Args:
        weight: of the term in the loss.
        on: `residual`, the residual that an aggregator adds to a global feature, or the embedding for aggregators
            without one; or `embedding`, always.
    """

    def __init__(self, *, weight: float, on: str = "residual") -> None:
        super().__init__(weight=weight)
        require(one_of("residual", "embedding"), on=on)
        self.on = on

    @abstractmethod
    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        """Return the term, a mean over sets, from the cosines between each set's elements."""

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the sum over modalities; single vectors add nothing, so K may be swept from 1."""
        sides = [self._elements(encoded) for encoded in (visual, text)]
        sets = [x_BKD for x_BKD in sides if x_BKD.ndim == 3 and x_BKD.shape[1] > 1]
        zero = visual.vectors.new_zeros(())
        return sum((self.of_sets(x_BKD @ x_BKD.mT) for x_BKD in map(l2_normalise, sets)), zero)

    def _elements(self, encoded: Embeddings) -> Tensor:
        if self.on == "residual" and encoded.residual is not None:
            return encoded.residual
        return encoded.vectors


@REGULARISERS.register("diversity")
class Diversity(WithinSets):
    """The Frobenius norm of each set's Gram matrix less its diagonal, over K^2 (PVSE, Song and Soleymani 2019)."""

    name = "diversity"

    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        k = gram_BKK.shape[-1]
        same_KK = torch.eye(k, dtype=torch.bool, device=gram_BKK.device)
        return torch.linalg.matrix_norm(gram_BKK.masked_fill(same_KK, 0.0)).mean() / k**2


@REGULARISERS.register("uniformity")
class Uniformity(WithinSets):
    """The mean of exp(-2 d^2) over the pairs of each set's elements, d their distance (DivE, section 3.4).

    The paper sums over pairs; the authors' code averages, and the published weight refers to the average.
    """

    name = "uniformity"

    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        k = gram_BKK.shape[-1]
        first_P, second_P = torch.triu_indices(k, k, offset=1, device=gram_BKK.device)
        square_BK = gram_BKK.diagonal(dim1=1, dim2=2)
        distance_BP = square_BK[:, first_P] + square_BK[:, second_P] - 2 * gram_BKK[:, first_P, second_P]
        return (-2 * distance_BP).exp().mean()


@REGULARISERS.register("intra_set_divergence")
class IntraSetDivergence(WithinSets):
    """The mean of exp(scale * (cosine - margin)) over the pairs of each set's elements (MaxMatch).

    Source: Alomari et al., ACL 2025, Intra-Set Divergence Loss. The authors have published no code; form and defaults
    follow others' code of the method.

    Args:
        weight: of the term in the loss.
        margin: cosine at which a pair adds 1.
        scale: sharpness.
        on: `embedding`, or `residual`, the residual that an aggregator adds to a global feature.
    """

    name = "intra_set_divergence"

    def __init__(
        self, *, weight: float, margin: float = 0.5, scale: float = 1.0, on: str = "embedding"
    ) -> None:
        super().__init__(weight=weight, on=on)
        require(above(0), scale=scale)
        self.margin, self.scale = margin, scale

    def of_sets(self, gram_BKK: Tensor) -> Tensor:
        k = gram_BKK.shape[-1]
        first_P, second_P = torch.triu_indices(k, k, offset=1, device=gram_BKK.device)
        return (self.scale * (gram_BKK[:, first_P, second_P] - self.margin)).exp().mean()


@REGULARISERS.register("global_discriminative")
class GlobalDiscriminative(Regulariser):
    """The mean of exp(scale * (cosine - margin)) of each element with its global feature (MaxMatch).

    Source: Alomari et al., ACL 2025, Global Discriminative Loss. The authors have published no code; form and defaults
    follow others' code of the method. The global feature is the one before its layer norm.

    Args:
        weight: of the term in the loss.
        margin: cosine at which an element adds 1.
        scale: sharpness.
    """

    name = "global_discriminative"

    def __init__(self, *, weight: float, margin: float = 0.5, scale: float = 1.0) -> None:
        super().__init__(weight=weight)
        require(above(0), scale=scale)
        self.margin, self.scale = margin, scale

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the sum over modalities of the means over elements; single vectors add nothing.

        Raises:
            InputError: sets whose aggregator adds them to no global feature.
        """
        total = visual.vectors.new_zeros(())
        for side in (visual, text):
            if side.vectors.ndim == 2:
                continue
            if side.global_feature is None:
                raise InputError(
                    "global_discriminative needs aggregators that add residuals to a global feature; choose slots, "
                    "transformer_set or pie on both sides, or remove the regulariser (--regularisers)"
                )
            global_B1D = l2_normalise(side.global_feature)[:, None]
            cosine_BK = (l2_normalise(side.vectors) * global_B1D).sum(dim=-1)
            total = total + (self.scale * (cosine_BK - self.margin)).exp().mean()
        return total


@REGULARISERS.register("mmd")
class MMD(Regulariser):
    """The squared maximum mean discrepancy between all elements of both modalities, a V-statistic.

    Sources: Gretton et al. 2006; PVSE; DivE.

    The kernel is exp(-gamma * distance), not of the squared distance, as in PVSE's and DivE's code.

    Args:
        weight: of the term in the loss.
        gamma: sharpness of the kernel.
    """

    name = "mmd"

    def __init__(self, *, weight: float, gamma: float = 0.5) -> None:
        super().__init__(weight=weight)
        require(above(0), gamma=gamma)
        self.gamma = gamma

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the mean kernel within each modality minus twice the mean between them, a scalar."""
        x_MD, y_ND = (encoded.vectors.reshape(-1, encoded.vectors.shape[-1]) for encoded in (visual, text))
        return self._kernel(x_MD, x_MD) - 2 * self._kernel(x_MD, y_ND) + self._kernel(y_ND, y_ND)

    def _kernel(self, x_MD: Tensor, y_ND: Tensor) -> Tensor:
        return (-self.gamma * distances(x_MD, y_ND)).exp().mean()


def distances(x_MD: Tensor, y_ND: Tensor) -> Tensor:
    """Return the Euclidean distances `(M, N)` by a matrix product, without larger tensors.

    A distance below the resolution of the product (0.002 between unit vectors in float32) counts as zero with zero
    gradient, where the gradient of the root is unbounded.
    """
    square_M, square_N = x_MD.square().sum(dim=1), y_ND.square().sum(dim=1)
    scale_MN = square_M[:, None] + square_N
    square_MN = scale_MN - 2 * x_MD @ y_ND.T
    zero_MN = square_MN <= 16 * torch.finfo(square_MN.dtype).eps * scale_MN
    return square_MN.masked_fill(zero_MN, 1.0).sqrt().masked_fill(zero_MN, 0.0)


@REGULARISERS.register("vib")
class VIB(Regulariser):
    """The KL divergence of each distribution from N(0, I), averaged over a modality's items, summed over both.

    Sources: Alemi et al. 2017 (variational information bottleneck); PCME++, Chun, ICLR 2024.

    It prevents vanishing variances. A divergence is a sum over channels; here it is the mean, as in PCME++'s code, to
    which the published weight of 1e-4 refers. That code drops the term above 10,000; here it is kept, because its
    gradient reduces it.

    Args:
        weight: of the term in the loss.
    """

    name = "vib"
    of_distributions = True

    def forward(self, visual: Embeddings, text: Embeddings) -> Tensor:
        """Return the sum of both modalities' divergences, a scalar."""
        one, other = (_divergence(*mean_and_log_variance(side.vectors)) for side in (visual, text))
        return one + other


def _divergence(mean_BD: Tensor, log_variance_BD: Tensor) -> Tensor:
    """Return KL(N(mean, variance) || N(0, I)) by channel, averaged over channels and items."""
    return (mean_BD.square() + log_variance_BD.exp() - 1 - log_variance_BD).mean() / 2
