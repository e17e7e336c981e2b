"""Multi-head attention of a few queries to a set, and the other layers of a transformer."""

from __future__ import annotations

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
    """Return what queries get of a set, the heads side by side `(B, K, E)`, and their weights `(B, K, H, N)`.

    A head's weights are a softmax over the real elements, in float32 at least. While queries are few, keys and values
    are never formed: queries go through the transposed key map to meet the elements themselves, and the means of
    elements go through the value map, which is the same by associativity and costs K rows in the place of 2N.

    Args:
        query_BKE: queries after their map; one batch row applies to all sets.
        x_BNC: the elements; values in the padding must be finite.
        mask_BN: True for real elements.
        key: map of the elements to keys. A bias would shift all scores of a softmax alike, so it has none.
        value: map of the elements to values.
        heads: how many share the width E.
        scale: of the scores; 1 / sqrt(E / H) where None.
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
    """Maps of queries, keys and values, `attend`, and a map of what the heads found.

    Args:
        dim: width of queries and elements, which `heads` must divide.
        heads: of the attention.
        bias: of the maps of queries and values; that of what the heads found always has one.
    """

    def __init__(self, dim: int, *, heads: int, bias: bool = True) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.out = nn.Linear(dim, dim)

    def forward(self, query_BKD: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(B, K, D)` and the weights `(B, K, N)`, the mean over heads."""
        got_BKD, weight_BKHN = attend(
            self.query(query_BKD), x_BND, mask_BN, key=self.key, value=self.value, heads=self.heads
        )
        return self.out(got_BKD), weight_BKHN.mean(dim=2)


def mlp(dim: int, *, hidden: int = 4) -> nn.Sequential:
    """Return the layers of a transformer's MLP, `hidden` times as wide inside, with GELU."""
    return nn.Sequential(nn.Linear(dim, hidden * dim), nn.GELU(), nn.Linear(hidden * dim, dim))


def with_token(token_D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return sets `(B, 1 + N, D)` that begin with a token, a learned one `(D,)` or each set's `(B, 1, D)`."""
    token_B1D = token_D.expand(x_BND.shape[0], 1, -1)
    return torch.cat((token_B1D, x_BND), dim=1), nn.functional.pad(mask_BN, (1, 0), value=True)


def check_heads(dim: int, heads: int) -> None:
    """Refuse heads that do not divide the width.

    Raises:
        InputError: likewise.
    """
    check_counts(heads=heads)
    if dim % heads:
        raise InputError(f"heads must divide the width of the elements, {dim}, and {heads} does not")


def truncated_normal(module: nn.Module, *, std: float = 0.02) -> None:
    """Start the linear maps of a module as vision transformers do: weights of this deviation, no bias."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
