"""Maps of single elements without the pads of their sets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polypool.infra.compute.device import traced

STEP = 64
"""The number of rows on a CPU is a multiple of it.

oneDNN compiles a matrix product in bfloat16 anew for each number of rows that it meets, which differs from batch to
batch. That takes 3 ms, and the product of 1,760 rows of 384 values half of one.
"""


class Rows:
    """The elements of padded sets as R rows, so that maps of single elements skip the pads.

    On a CPU, rows are the real elements, then copies of the first up to a multiple of `STEP`. On a GPU the number of
    real elements would have to be copied to the host, so there, and where code is traced, rows are all B x N elements.

    Attributes:
        mask_R: True for real elements, where rows are all elements; None where none of the rows is a pad.
        real: `mask_R`, or the number of real elements, which are the first rows; None where all rows are.
    """

    def __init__(self, mask_BN: Tensor) -> None:
        self.mask_BN = mask_BN
        self.mask_R: Tensor | None = None
        self.real: Tensor | int | None = None
        self._place_R: Tensor | None = None
        if mask_BN.device.type != "cpu" or traced():
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
        """Return the sets `(B, N, D)` of rows; pads are zero, or mapped where they are rows."""
        if self._place_R is not None:
            x_AD = x_RD.new_zeros(self.mask_BN.numel(), x_RD.shape[1])
            x_RD = x_AD.index_copy_(0, self._place_R, x_RD[: self.real])
        return x_RD.view(self.mask_BN.shape[0], self.mask_BN.shape[1], x_RD.shape[1])


def map_elements(
    linear: nn.Module, x_BNF: Tensor, mask_BN: Tensor, *, prepared: Callable[[Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Return the sets `(B, N, D)` of mapped elements.

    Args:
        linear: maps each element, `(R, F)` to `(R, D)`.
        x_BNF: the sets.
        mask_BN: True for real elements.
        prepared: called first, with rows `(R, F)` and `Rows.mask_R`.
    """
    rows = Rows(mask_BN)
    return rows.sets(linear(prepared(rows.of(x_BNF), rows.mask_R)))
