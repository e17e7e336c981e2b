"""PIE-Net (PVSE: Song and Soleymani, CVPR 2019): K attention heads, each a residual on a global feature."""

from __future__ import annotations

from torch import Tensor, nn

from polypool.aggregators.aggregator import check_counts
from polypool.aggregators.attention import init_linear
from polypool.aggregators.masks import masked_softmax
from polypool.aggregators.sets.set_prediction import SetPrediction
from polypool.infra.compute.dropout import Dropout
from polypool.infra.registry import AGGREGATORS


@AGGREGATORS.register("pie")
class PIE(SetPrediction):
    """K vectors LN(global feature + residual), one per attention head.

    A residual is the sigmoid of a linear map of the head's weighted mean. The weights are a softmax over the elements
    of w2 tanh(w1 x), as in structured self-attention. All maps start from Xavier's uniform weights, as in the authors'
    code.

    Args:
        dim: width of the elements.
        k: number of heads and vectors.
        hidden: width of the attention's inner layer; half of `dim` if None.
        dropout: dropout rate of the residuals.
        width: width of the residuals, the global feature and the vectors; `dim` if None.
        global_feature: aggregator that computes the global feature if the encoder returns none.
    """

    def __init__(
        self,
        dim: int,
        *,
        k: int = 2,
        hidden: int | None = None,
        dropout: float = 0.0,
        width: int | None = None,
        global_feature: str = "mean",
    ) -> None:
        super().__init__(dim, k=k, width=width, global_feature=global_feature)
        hidden = max(dim // 2, 1) if hidden is None else hidden
        check_counts(hidden=hidden)
        self.attend = nn.Sequential(
            nn.Linear(dim, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, k, bias=False)
        )
        self.fc = nn.Linear(dim, self.width)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(self.width)
        init_linear(self.attend, self.fc, weight=nn.init.xavier_uniform_)

    def residual(self, x_BND: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals `(B, K, W)`, in [0, 1] before dropout, and the attention weights `(B, K, N)`."""
        weight_BKN = masked_softmax(self.attend(x_BND), mask_BN).transpose(1, 2)
        return self.dropout(self.fc(weight_BKN @ x_BND).sigmoid()), weight_BKN

    def combine(self, residual_BKW: Tensor, global_BW: Tensor) -> Tensor:
        """Return the layer-normalised sums of residuals and global feature, `(B, K, W)`."""
        return self.norm(global_BW[:, None] + residual_BKW)
