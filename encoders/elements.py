"""Element-wise maps of padded sets that skip the padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polypool.infra.compute.device import shapes_only

STEP = 64
"""The number of rows on a CPU is padded to a multiple of this.

oneDNN compiles a bfloat16 matrix product for each new number of rows, which varies by batch. Compiling takes 3 ms; the
product of 1,760 rows of 384 values takes 0.5 ms."""


class Rows:
    """The elements of padded sets as R rows, so that element-wise maps skip the padding.

    On a CPU, rows are the real elements, then copies of the first one up to a multiple of `STEP`, at most B x N rows.
    Rows are all B x N elements if none is padding, under tracing, and on a GPU, where counting real elements would
    synchronise with the host.

    Attributes:
        mask_R: True for real elements if rows are all elements; None if no row is padding.
        real: `mask_R`, or the number of real elements, which are the first rows; None if all rows are real.
    """

    def __init__(self, mask_BN: Tensor) -> None:
        self.mask_BN = mask_BN
        self.mask_R: Tensor | None = None
        self.real: Tensor | int | None = None
        self._place_R: Tensor | None = None
        if shapes_only(mask_BN):
            self.real = self.mask_R = mask_BN.flatten()
        elif not mask_BN.all():
            self._place_R = mask_BN.flatten().nonzero().squeeze(1)
            self.real = len(self._place_R)

    def of(self, x_BNF: Tensor) -> Tensor:
        """Return the rows `(R, F)` of sets."""
        x_AF = x_BNF.flatten(0, 1)
        if self._place_R is None:
            return x_AF
        copies = min(-len(self._place_R) % STEP, len(x_AF) - len(self._place_R))
        place_R = torch.cat((self._place_R, self._place_R[:1].expand(copies)))
        return x_AF.index_select(0, place_R)

    def sets(self, x_RD: Tensor) -> Tensor:
        """Return the sets `(B, N, D)` of rows; padding is zero, or mapped if it is among the rows."""
        if self._place_R is not None:
            x_AD = x_RD.new_zeros(self.mask_BN.numel(), x_RD.shape[1])
            x_RD = x_AD.index_copy_(0, self._place_R, x_RD[: self.real])
        return x_RD.view(self.mask_BN.shape[0], self.mask_BN.shape[1], x_RD.shape[1])


def map_elements(
    linear: nn.Module, x_BNF: Tensor, mask_BN: Tensor, *, prepared: Callable[[Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Return the sets `(B, N, D)` of mapped elements.

    Args:
        linear: maps rows `(R, F)` to `(R, D)`.
        x_BNF: the sets.
        mask_BN: True for real elements.
        prepared: preprocessing, called with rows `(R, F)` and `Rows.mask_R`.
    """
    rows = Rows(mask_BN)
    return rows.sets(linear(prepared(rows.of(x_BNF), rows.mask_R)))
