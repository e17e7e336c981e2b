"""What the predictors of sets share: a residual for each of K vectors, and a summary that they all start from."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from aggregators.base import Aggregator, check_sets
from infra.errors import InputError
from infra.registry import AGGREGATORS


class SetPrediction(Aggregator):
    """K vectors, each the summary of the whole plus a residual of its own.

    Args:
        dim: width of the elements.
        k: how many vectors.
        width: width of the vectors and of the summary; that of the elements where None.
        summary: the aggregator that makes the summary where the encoder gives none.
    """

    takes_summary = True
    weights_over = "codes"

    def __init__(self, dim: int, *, k: int, width: int | None, summary: str) -> None:
        super().__init__()
        if k < 1 or (width is not None and width < 1):
            raise InputError(f"k={k} vectors of width={width} cannot be made; both must be at least 1")
        self.set_size = k
        self.width = width or dim
        self.summarise: Aggregator = AGGREGATORS.build(summary, dim)
        self.symmetric = self.summarise.symmetric
        if self.summarise.set_size > 1 or self.summarise.needs_context:
            raise InputError(
                f"summary={summary} does not make one vector of a set; choose one such as max or mean"
            )

    @abstractmethod
    def residual(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Return the residuals `(B, K, W)` of elements whose pads are zero."""

    @abstractmethod
    def combine(self, residual_BKW: Tensor, summary_BW: Tensor) -> Tensor:
        """Return the vectors `(B, K, W)`."""

    def forward(self, x_BND: Tensor, mask_BN: Tensor, summary_BW: Tensor | None = None) -> Tensor:
        """Return `(B, K, W)`, or `(B, W)` where K is 1."""
        return self.with_residual(x_BND, mask_BN, summary_BW)[0]

    def with_residual(
        self, x_BND: Tensor, mask_BN: Tensor, summary_BW: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the result of `forward` and the residuals `(B, K, W)`.

        Raises:
            InputError: what `check_sets` refuses, or a summary that has not the width of the residuals.
        """
        check_sets(x_BND, mask_BN)
        x_BND = x_BND.masked_fill(~mask_BN[..., None], 0.0)
        made = summary_BW is None
        if made:
            summary_BW = self.summarise(x_BND, mask_BN)
        if summary_BW.shape[-1] != self.width:
            origin = f"{type(self.summarise).__name__} of the elements" if made else "the encoder's summary"
            raise InputError(
                f"{type(self).__name__} makes vectors of width {self.width}, and {origin} has width "
                f"{summary_BW.shape[-1]}; they are added: give width={summary_BW.shape[-1]}, or an encoder whose "
                f"summary has width {self.width}"
            )
        residual_BKW = self.residual(x_BND, mask_BN)
        out_BKW = self.combine(residual_BKW, summary_BW)
        return out_BKW.squeeze(1) if self.set_size == 1 else out_BKW, residual_BKW
