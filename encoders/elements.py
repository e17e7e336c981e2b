"""Maps of single elements without the pads of their sets."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from polypool.infra.compute.device import traced


class Rows:
    """The elements of padded sets as R rows, so that maps of single elements skip the pads.

    On a CPU, rows are the real elements. On a GPU their number would have to be copied to the host, so there, and where
    code is traced, rows are all B x N elements, and `real_R` is True for the real ones; it is None where all rows are.
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
        """Return the sets `(B, N, D)` of rows; pads are zero, or mapped where they are rows."""
        if self._place_R is not None:
            x_AD = x_RD.new_zeros(self.mask_BN.numel(), x_RD.shape[1])
            x_RD = x_AD.index_copy_(0, self._place_R, x_RD)
        return x_RD.view(self.mask_BN.shape[0], self.mask_BN.shape[1], x_RD.shape[1])


def map_elements(
    linear: nn.Module, x_BNF: Tensor, mask_BN: Tensor, *, prepared: Callable[[Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Return the sets `(B, N, D)` of mapped elements.

    Args:
        linear: maps each element, `(R, F)` to `(R, D)`.
        x_BNF: the sets.
        mask_BN: True for real elements.
        prepared: called first, with elements `(R, F)` and `(R)`, True for real ones, or None where all are.
    """
    rows = Rows(mask_BN)
    return rows.sets(linear(prepared(rows.of(x_BNF), rows.real_R)))
