"""The elements of padded sets one below the other, so that maps of single elements need not map pads."""

from __future__ import annotations

from torch import Tensor

from infra.compute.tracing import traced


class Rows:
    """Where the R rows lie in the sets of a mask.

    On a CPU they are the real elements. A GPU would have to tell the host how many these are, and the host to wait, so
    there, and where code is traced, rows are all B x N elements, and `real_R` says which of them are real.

    Attributes:
        mask_BN: True for real elements.
        real_R: True for rows that are real; None where all are.
    """

    def __init__(self, mask_BN: Tensor) -> None:
        self.mask_BN, self.real_R, self._place_R = mask_BN, None, None
        if mask_BN.device.type != "cpu" or traced():
            self.real_R = mask_BN.flatten()
        elif not mask_BN.all():
            self._place_R = mask_BN.flatten().nonzero().squeeze(1)

    def of(self, x_BNF: Tensor) -> Tensor:
        """Return the rows `(R, F)` of sets."""
        x_AF = x_BNF.flatten(0, 1)
        return x_AF if self._place_R is None else x_AF.index_select(0, self._place_R)

    def sets(self, x_RD: Tensor) -> Tensor:
        """Return the sets `(B, N, D)` of rows; pads are zero, or what was made of them where they are rows, too."""
        if self._place_R is not None:
            x_AD = x_RD.new_zeros(self.mask_BN.numel(), x_RD.shape[1])
            x_RD = x_AD.index_copy_(0, self._place_R, x_RD)
        return x_RD.view(self.mask_BN.shape[0], self.mask_BN.shape[1], x_RD.shape[1])
