"""Adaptive pooling, ADPOOL (VSE+2AD, section 3.2, and its code)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.masks import masked_softmax, zero_pads
from polypool.aggregators.ranks.sorted_sum import real_ranks, sort_descending
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("adpool")
class ADPool(Aggregator):
    """A learned mix of two weighted sums over a set.

    Token level (Eq. 3): each channel is sorted, and a linear map of the sorted rows gives the weights. In the authors'
    code the map is D x D with a ReLU, so every channel has a separate softmax; the paper shows one weight per row and
    no ReLU. Embedding level (Eq. 4): softmax of the values. Balance (Eq. 5): a linear map scores both results, and a
    softmax mixes them. Padding is excluded throughout; in the code it takes part in the token level's softmax, so that
    a set's vector depends on the amount of padding.

    Args:
        dim: width of the elements.
        token: use the token level (False: "-tok" of table 3).
        embedding: use the embedding level (False: "-emb" of table 3).
        balance: `learned`; a fixed weight of the token level between 0 and 1; or `random`, a fixed weight drawn at
            initialisation (appendix C, table 2).
        per_channel: token weights per row and channel instead of one per row.
        relu: apply a ReLU to the scores before the softmax.
    """

    weights_over = "ranks"
    fixed_weight: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        token: bool = True,
        embedding: bool = True,
        balance: str | float = "learned",
        per_channel: bool = True,
        relu: bool = True,
    ) -> None:
        super().__init__()
        if not (token or embedding):
            raise ValueError("one of token and embedding must be True; the aggregator without both is `mean`")
        drawn = balance in ("learned", "random")
        if not drawn and not (isinstance(balance, int | float) and 0 <= balance <= 1):
            raise ValueError(f"balance must be `learned`, `random` or a weight from 0 to 1, not {balance!r}")
        self.embedding, self.relu = embedding, relu
        self.linear = _xavier(dim, dim if per_channel else 1) if token else None
        weight = None if balance == "learned" else torch.rand(()) if drawn else torch.tensor(float(balance))
        self.register_buffer("fixed_weight", weight)
        self.balance = _xavier(dim, 1) if token and embedding and balance == "learned" else None

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the pooled vectors `(B, D)` and the token level's weights over ranks.

        The weights are `(B, N, D)`, or `(B, N)` without `per_channel`; None without the token level.
        """
        levels, weight_BNC = [], None
        if self.linear is not None:
            sorted_BND = sort_descending(x_BND, mask_BN)
            score_BNC = self.linear(sorted_BND)
            score_BNC = score_BNC.relu() if self.relu else score_BNC
            weight_BNC = masked_softmax(score_BNC, real_ranks(mask_BN))
            levels.append((weight_BNC * sorted_BND).sum(dim=1))
        if self.embedding:
            x_BND = zero_pads(x_BND, mask_BN)
            levels.append((masked_softmax(x_BND, mask_BN) * x_BND).sum(dim=1))
        weights = None if weight_BNC is None else weight_BNC.squeeze(-1)
        if len(levels) == 1:
            return Pooled(levels[0], weights=weights)
        token_BD, embedding_BD = levels
        vector_BD = embedding_BD.lerp(token_BD, self.token_level_weight(token_BD, embedding_BD))
        return Pooled(vector_BD, weights=weights)

    def token_level_weight(self, token_BD: Tensor, embedding_BD: Tensor) -> Tensor:
        """Return the weight of the token level `(B, 1)`; the embedding level has 1 minus it."""
        if self.balance is None:
            assert self.fixed_weight is not None  # with both levels the weight is learned or fixed
            return self.fixed_weight.to(token_BD.dtype).expand(len(token_BD), 1)
        return torch.sigmoid(self.balance(token_BD) - self.balance(embedding_BD)).to(token_BD.dtype)


def _xavier(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
