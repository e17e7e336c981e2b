"""Multi-head attention of a few queries over a set, and other transformer layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import check_counts
from polypool.aggregators.masks import softmax_over_elements
from polypool.infra.errors import InputError


def attend(
    query_BKE: Tensor,
    x_BNC: Tensor,
    mask_BN: Tensor,
    *,
    key: nn.Linear,
    value: nn.Linear,
    heads: int,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention outputs with heads concatenated, `(B, K, E)`, and weights `(B, K, H, N)`.

    Weights are a softmax over the real elements, computed in float32 at least. With few queries, keys and values are
    never materialised: queries pass through the transposed key map, and weighted means of the elements through the
    value map. By associativity the result is the same, and the maps apply to 2K rows per set instead of 2N.

    Args:
        query_BKE: projected queries; a batch of 1 is shared by all sets.
        x_BNC: the elements; values in the padding must be finite.
        mask_BN: True for real elements.
        key: key projection, without bias: the softmax would cancel it.
        value: value projection.
        heads: number of heads that share the width E.
        scale: factor of the scores; 1 / sqrt(E / H) if None.
    """
    query_BKHE = query_BKE.unflatten(-1, (heads, -1))
    query_BKHE = query_BKHE * (query_BKHE.shape[-1] ** -0.5 if scale is None else scale)
    few = 4 * query_BKE.shape[1] * heads < x_BNC.shape[-1]
    if few:
        query_BKHC = torch.einsum("bkhe,hec->bkhc", query_BKHE, key.weight.unflatten(0, (heads, -1)))
        logit_BKHN = torch.einsum("bkhc,bnc->bkhn", query_BKHC.expand(x_BNC.shape[0], -1, -1, -1), x_BNC)
    else:
        key_BNHE = key(x_BNC).unflatten(-1, (heads, -1))
        logit_BKHN = torch.einsum("bkhe,bnhe->bkhn", query_BKHE.expand(x_BNC.shape[0], -1, -1, -1), key_BNHE)
    weight_BKHN = softmax_over_elements(logit_BKHN, mask_BN[:, None, None])
    if few:
        mean_BKHC = torch.einsum("bkhn,bnc->bkhc", weight_BKHN, x_BNC)
        got_BKHE = torch.einsum("bkhc,hec->bkhe", mean_BKHC, value.weight.unflatten(0, (heads, -1)))
        got_BKE = got_BKHE.flatten(2)
        return (got_BKE if value.bias is None else got_BKE + value.bias), weight_BKHN
    value_BNHE = value(x_BNC).unflatten(-1, (heads, -1))
    return torch.einsum("bkhn,bnhe->bkhe", weight_BKHN, value_BNHE).flatten(2), weight_BKHN


class Attention(nn.Module):
    """Multi-head attention: projections of queries, keys and values, `attend`, and an output projection.

    Args:
        dim: width of queries and elements; `heads` must divide it.
        heads: number of heads.
    """

    def __init__(self, dim: int, *, heads: int) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, query_BKD: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs `(B, K, D)` and weights `(B, K, N)`, averaged over heads."""
        got_BKD, weight_BKHN = attend(
            self.query(query_BKD), x_BND, mask_BN, key=self.key, value=self.value, heads=self.heads
        )
        return self.out(got_BKD), weight_BKHN.mean(dim=2)


def mlp(dim: int, *, hidden: int = 4) -> nn.Sequential:
    """Return a transformer MLP with GELU and an inner width of `hidden` x `dim`."""
    return nn.Sequential(nn.Linear(dim, hidden * dim), nn.GELU(), nn.Linear(hidden * dim, dim))


def with_token(token_D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Prepend a token, learned `(D,)` or per set `(B, 1, D)`; return sets `(B, 1 + N, D)` and their masks."""
    token_B1D = token_D.expand(x_BND.shape[0], 1, -1)
    return torch.cat((token_B1D, x_BND), dim=1), nn.functional.pad(mask_BN, (1, 0), value=True)


def check_heads(dim: int, heads: int) -> None:
    """Check that `heads` divides the width.

    Raises:
        InputError: it does not.
    """
    check_counts(heads=heads)
    if dim % heads:
        raise InputError(f"heads must divide the width of the elements, {dim}, and {heads} does not")


def init_linear(*modules: nn.Module, weight: Callable[[Tensor], object]) -> None:
    """Initialise the linear maps in modules: weights by a function of `nn.init`, zero biases."""
    for linear in (part for module in modules for part in module.modules()):
        if isinstance(linear, nn.Linear):
            weight(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
