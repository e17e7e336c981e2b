"""What an aggregator is: a set of features in, one vector (or a few) out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from infra.errors import InputError


class Aggregator(nn.Module, ABC):
    """`(x_BND, mask_BN)` -> `(B, D)`, or `(B, K, D)` where `num_embeddings` K is more than one.

    Masks are bool and True marks a real element. What lies under the mask, how far a set is padded and
    which sets share its batch never change a result; `aggregators/contract.py` holds every registered
    aggregator to that. Constructors take the width of the elements first: `Aggregator(dim, *, ...)`.
    """

    num_embeddings: int = 1
    width: int | None = None
    """Width of what comes out; None where it is that of the elements."""
    needs_context: bool = False
    """True: `forward(x_BND, mask_BN, context_BMD, context_mask_BM)`, where the task has a second modality."""
    takes_global_feature: bool = False
    """True: `forward(x_BND, mask_BN, global_BS=None)`, a vector of the whole that some encoders add to the set."""
    symmetric: bool = True
    """True: the order of a set's elements does not matter."""
    weights_over: Literal["elements", "ranks", "embeddings"] = "elements"
    """What `weights` returns. "elements": `(B, N)`, or `(B, N, D)` with a weight for each channel, 0 in the pads;
    "embeddings": `(B, K, N)`, the elements' weights in each of K vectors, likewise; "ranks": `(B, N)` or `(B, N, D)` over
    each channel's values in descending order, where those beyond a set's size mean nothing."""

    def __call__(self, x_BND: Tensor, mask_BN: Tensor, *more: Any, **named: Any) -> Any:
        """Check the sets, then run `forward`."""
        check_sets(x_BND, mask_BN)
        return super().__call__(x_BND, mask_BN, *more, **named)

    @abstractmethod
    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        """Aggregate each set.

        Args:
            x_BND: the sets' elements, padded to a common size.
            mask_BN: True for real elements; every set has at least one.
        """

    def with_residual(self, x_BND: Tensor, mask_BN: Tensor, *more: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the result and, where it is a global vector plus a residual for each k, the residual `(B, K, D)`."""
        return self(x_BND, mask_BN, *more), None

    def of_all(self, x_QND: Tensor, mask_QN: Tensor, context_GMD: Tensor, context_mask_GM: Tensor) -> Tensor:
        """Aggregate each set once with every context, where one is needed: `(Q, G, D)`, or `(Q, G, K, D)`."""
        shape = len(x_QND), len(context_GMD)
        sets = (part.repeat_interleave(shape[1], dim=0) for part in (x_QND, mask_QN))
        contexts = (torch.cat([part] * shape[0]) for part in (context_GMD, context_mask_GM))
        return self(*sets, *contexts).unflatten(0, shape)

    def weights(self, x_BND: Tensor, mask_BN: Tensor) -> Tensor | None:
        """Return what each element weighs, as `weights_over` says, or None where there is no such thing."""
        return None


def check_sets(x_BND: Tensor, mask_BN: Tensor) -> None:
    """Refuse sets that no aggregator can work with; the cost is that of a look at the mask.

    Only on a CPU are sets without an element found: elsewhere the host would have to wait for the device, and what such
    a set gives there is undefined. NaN among the features is no error here, it comes out as NaN.

    Raises:
        InputError: features that are not `(B, N, D)` floats, a mask that is not `(B, N)` bools, an empty set.
    """
    if x_BND.dim() != 3 or not x_BND.is_floating_point():
        raise InputError(
            "an aggregator takes floating-point features of shape (sets, elements, width), not "
            f"{x_BND.dtype} of shape {tuple(x_BND.shape)}"
        )
    if mask_BN.dtype != torch.bool:
        raise InputError(
            f"a mask is torch.bool, True for real elements, not {mask_BN.dtype}; mask.bool() makes it of ones and zeros"
        )
    if mask_BN.shape != x_BND.shape[:2]:
        raise InputError(
            f"the mask has shape {tuple(mask_BN.shape)}, and the features {tuple(x_BND.shape)}; expected a mask of "
            f"shape {tuple(x_BND.shape[:2])}, one value for every element"
        )
    if mask_BN.device.type == "cpu" and not torch.compiler.is_compiling():
        empty_B = ~mask_BN.any(dim=1)
        if empty_B.any():
            raise InputError(
                f"{int(empty_B.sum())} of {len(empty_B)} sets have no element, the first is number "
                f"{int(empty_B.int().argmax())} of the batch (from 0); leave it out, or keep at least one element"
            )
