"""What an aggregator is: a set of features in, one vector (or a few) out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Aggregator(nn.Module, ABC):
    """`(x_BND, mask_BN)` -> `(B, D)`, or `(B, K, D)` where `set_size` K is more than one.

    Masks are bool and True marks a real element. What lies under the mask, how far a set is padded and
    which sets share its batch never change a result; `aggregators/contract.py` holds every registered
    aggregator to that. Constructors take the width of the elements first: `Aggregator(dim, *, ...)`.
    """

    set_size: int = 1
    needs_context: bool = False
    """True: `forward(x_BND, mask_BN, context_BMD, context_mask_BM)`, where the task has a second modality."""
    symmetric: bool = True
    """True: the order of a set's elements does not matter."""

    @abstractmethod
    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Aggregate each set.

        Args:
            x_BND: the sets' elements, padded to a common size.
            mask_BN: True for real elements; every set has at least one.
        """

    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor | None:
        """Return what a figure can draw, such as `(B, N)` weights over sorted positions, or None."""
        return None


def sort_descending(x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """Sort every channel on its own from its largest value down; pads come last, as zeros.

    The sort runs along the last axis of a contiguous transposed copy, which is several times faster
    than along the middle one.
    """
    lowest = x_BND.new_full((), float("-inf"))
    x_BDN = x_BND.where(mask_BN[..., None], lowest).transpose(1, 2).contiguous()
    x_BDN = x_BDN.sort(dim=-1, descending=True).values
    size_B = mask_BN.sum(dim=1)
    real_BN = size_B.new_ones(mask_BN.shape).cumsum(dim=1) <= size_B[:, None]
    return x_BDN.masked_fill(~real_BN[:, None, :], 0.0).transpose(1, 2)
