"""Base class of set prediction: K vectors, each a residual added to a global feature."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Pooled, check_counts, one_vector_aggregator
from polypool.aggregators.masks import zero_pads
from polypool.infra.errors import InputError


class SetPrediction(Aggregator):
    """K vectors, each the global feature plus a separate residual.

    Args:
        dim: width of the elements.
        k: number of vectors.
        width: width of the vectors and the global feature; `dim` if None.
        global_feature: aggregator that computes the global feature if the encoder returns none.
    """

    width: int
    takes_global_feature = True
    weights_over = "embeddings"

    def __init__(self, dim: int, *, k: int, width: int | None, global_feature: str) -> None:
        super().__init__()
        self.num_embeddings, self.width = k, dim if width is None else width
        check_counts(k=k, width=self.width)
        self.global_pool = one_vector_aggregator(global_feature, dim, parameter="global_feature")
        self.symmetric = self.global_pool.symmetric

    @abstractmethod
    def residual(self, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals `(B, K, W)` and the weights `(B, K, N)`; `x_BND` is zero in the padding."""

    @abstractmethod
    def combine(self, residual_BKW: Tensor, global_BW: Tensor) -> Tensor:
        """Return the vectors `(B, K, W)`."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor, *, global_feature_BS: Tensor | None = None) -> Pooled:
        """Return vectors `(B, K, W)`, or `(B, W)` if K is 1, residuals, weights `(B, K, N)` and the global feature.

        Raises:
            InputError: the global feature and the residuals differ in width.
        """
        x_BND = zero_pads(x_BND, mask_BN)
        global_BW = global_feature_BS
        if global_BW is None:
            global_BW = self.global_pool(x_BND, mask_BN).vectors
        if global_BW.shape[-1] != self.width:
            origin = (
                f"{type(self.global_pool).__name__} of the elements"
                if global_feature_BS is None
                else "the encoder's global feature"
            )
            raise InputError(
                f"{type(self).__name__} makes vectors of width {self.width}, and {origin} has width "
                f"{global_BW.shape[-1]}; they are added: give width={global_BW.shape[-1]}, or an encoder whose "
                f"global feature has width {self.width}"
            )
        residual_BKW, weight_BKN = self.residual(x_BND, mask_BN)
        vectors = self.combine(residual_BKW, global_BW)
        vectors = vectors.squeeze(1) if self.num_embeddings == 1 else vectors
        return Pooled(vectors, residual_BKW, weight_BKN, global_BW)
