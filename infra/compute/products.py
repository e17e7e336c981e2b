"""Products with a weight that many inputs meet, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 8
"""Inputs are best made of a multiple of so many rows: oneDNN keeps code for each number of rows that it has met."""


class Product:
    """`x (M, K)` -> `x @ weight.T + bias`, without gradient, for one weight and many x.

    Where torch has oneDNN, the weight is laid out once as its kernels read it. torch's own products lay it out anew
    each time, which for few rows costs as much as the product.

    Args:
        weight_NK: the weight.
        bias_N: added to every row.
    """

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        self.bias_N, self.packed = bias_N, None
        if _takes(weight_NK):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK.contiguous(), 16 * ROWS)
        else:
            self.weight_KN = weight_NK.T

    def __call__(self, x_MK: Tensor, *, plus_MN: Tensor | None = None) -> Tensor:
        """Return a new tensor `(M, N)`: the product, with the bias, and with `plus_MN` where given."""
        if self.packed is None:
            added = [part for part in (plus_MN, self.bias_N) if part is not None]
            out_MN = x_MK @ self.weight_KN if not added else torch.addmm(added[0], x_MK, self.weight_KN)
            return out_MN if len(added) < 2 else out_MN.add_(added[1])
        linear = torch.ops.mkldnn._linear_pointwise
        if plus_MN is None:
            return linear(x_MK, self.packed, self.bias_N, "none", [], "")
        return linear.binary(x_MK, plus_MN, self.packed, self.bias_N, "add")


def _takes(weight_NK: Tensor) -> bool:
    """Whether oneDNN is there for such a weight."""
    return (
        weight_NK.device.type == "cpu"
        and weight_NK.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
