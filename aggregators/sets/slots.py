"""Set prediction by slots that compete for elements (DivE: Kim et al., CVPR 2023, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import check_counts
from polypool.aggregators.positions import Positions, check_positions, encode_places
from polypool.aggregators.sets.set_prediction import SetPrediction
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("slots")
class Slots(SetPrediction):
    """K learned slots, refined by repeated application of one block of attention and feed-forward (Eq. 1 to 5).

    Attention weights are a softmax over the slots, so slots compete for each element; a slot takes the weighted mean of
    the elements, with its weights normalised to sum to 1. The vectors are LN(slots) + LN(global feature); the residual
    is LN(slots).

    Keys and values are never materialised: queries pass through the transposed key map, and weighted means of the
    elements through the value map. By associativity the result is the same, and the maps apply to 2K rows per
    iteration instead of 2N rows once.

    Args:
        dim: width of the elements.
        k: number of slots and vectors.
        iterations: applications of the block.
        heads: attention heads, each with a separate softmax over the slots.
        head_width: width of a head; the authors' code has 4 heads of 512.
        hidden: inner width of the feed-forward, as a multiple of the slots' width.
        dropout: dropout rate after the attention and inside the feed-forward.
        width: width of the slots, the global feature and the vectors; `dim` if None.
        positions: position encodings added to the keys: True along the set, for captions; `(height, width)` for the
            cells of a grid; False for none.
        global_feature: aggregator that computes the global feature if the encoder returns none.
    """

    def __init__(
        self,
        dim: int,
        *,
        k: int = 4,
        iterations: int = 4,
        heads: int = 4,
        head_width: int = 512,
        hidden: int = 4,
        dropout: float = 0.1,
        width: int | None = None,
        positions: Positions = False,
        global_feature: str = "max",
    ) -> None:
        super().__init__(dim, k=k, width=width, global_feature=global_feature)
        check_counts(iterations=iterations, heads=heads, head_width=head_width, hidden=hidden)
        check_positions(positions, dim)
        width, inner = self.width, heads * head_width
        self.symmetric = self.symmetric and not positions
        self.iterations, self.heads, self.positions = iterations, heads, positions
        self.slots = nn.Parameter(torch.randn(k, width))
        self.element_norm = nn.LayerNorm(dim)
        self.slot_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(dim, inner, bias=False)
        self.value = nn.Linear(dim, inner, bias=False)
        self.out = nn.Sequential(nn.Linear(inner, width), Dropout(dropout))
        self.feed = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, hidden * width),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(hidden * width, width),
        )
        self.residual_norm = nn.LayerNorm(width)
        self.global_norm = nn.LayerNorm(width)

    def attention(self, logit_BKHN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return each slot's weight of every element `(B, K, H, N)`: a softmax over the slots, 0 in the padding."""
        return logit_BKHN.softmax(dim=1).masked_fill(~mask_BN[:, None, None], 0.0)

    def residual(self, x_BNC: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer-normalised slots `(B, K, W)` and the last iteration's weights `(B, K, N)`.

        Weights are averaged over the heads and sum to one over the slots.
        """
        x_BNC = self.element_norm(x_BNC)
        key_BNC = x_BNC
        if self.positions:
            key_BNC = x_BNC + encode_places(self.positions, mask_BN, x_BNC)
        slot_BKW = self.slots.expand(x_BNC.shape[0], -1, -1)
        for _ in range(self.iterations):
            update_BKW, weight_BKHN = self._attend(slot_BKW, key_BNC, x_BNC, mask_BN)
            slot_BKW = slot_BKW + update_BKW
            slot_BKW = slot_BKW + self.feed(slot_BKW)
        return self.residual_norm(slot_BKW), weight_BKHN.mean(dim=2)

    def combine(self, residual_BKW: Tensor, global_BW: Tensor) -> Tensor:
        """Return the residuals plus the layer-normalised global feature, `(B, K, W)`."""
        return residual_BKW + self.global_norm(global_BW)[:, None]

    def _attend(
        self, slot_BKW: Tensor, key_BNC: Tensor, x_BNC: Tensor, mask_BN: Tensor
    ) -> tuple[Tensor, Tensor]:
        key_HEC, value_HEC = (map.weight.unflatten(0, (self.heads, -1)) for map in (self.key, self.value))
        query_BKHE = self.query(self.slot_norm(slot_BKW)).unflatten(-1, (self.heads, -1))
        query_BKHC = torch.einsum("bkhe,hec->bkhc", query_BKHE, key_HEC) * key_HEC.shape[1] ** -0.5
        weight_BKHN = self.attention(torch.einsum("bkhc,bnc->bkhn", query_BKHC, key_BNC), mask_BN)
        normalised_BKHN = weight_BKHN / (weight_BKHN.sum(dim=-1, keepdim=True) + 1e-7)
        mean_BKHC = torch.einsum("bkhn,bnc->bkhc", normalised_BKHN, x_BNC)
        mean_BKHE = torch.einsum("bkhc,hec->bkhe", mean_BKHC, value_HEC)
        return self.out(mean_BKHE.flatten(2)), weight_BKHN


@AGGREGATORS.register("transformer_set")
class TransformerSet(Slots):
    """`slots` with the softmax over the elements, as in a transformer, so that queries may share elements.

    The baseline of DivE's ablation (table 3, right). Parameters, weights and norms are the same as in `slots`; only
    this softmax differs.
    """

    def attention(self, logit_BKHN: Tensor, mask_BN: Tensor) -> Tensor:
        """Return each query's weight of every element `(B, K, H, N)`: a softmax over the elements."""
        return logit_BKHN.masked_fill(~mask_BN[:, None, None], float("-inf")).softmax(dim=-1)
