from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aggregators.averages.mean import Mean
from aggregators.base import Aggregator
from aggregators.contract import check_aggregator
from aggregators.relations.score_attention import ScoreAttention
from aggregators.sets.pie import PIE


class ContextPadsRead(ScoreAttention):
    def forward(self, x_BND: Tensor, mask_BN: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        return super().forward(x_BND, mask_BN, context_BMD, torch.ones_like(context_mask_BM))


class ContextMatesRead(ScoreAttention):
    def forward(self, x_BND: Tensor, mask_BN: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        out = super().forward(x_BND, mask_BN, context_BMD, context_mask_BM)
        return out + context_BMD.masked_fill(~context_mask_BM[..., None], 0.0).sum(dim=(0, 1))


class ContextOrderRead(ScoreAttention):
    def forward(self, x_BND: Tensor, mask_BN: Tensor, context_BMD: Tensor, context_mask_BM: Tensor) -> Tensor:
        return super().forward(x_BND, mask_BN, context_BMD, context_mask_BM) + context_BMD[:, 0]


class SummaryMatesRead(PIE):
    def combine(self, residual_BKW: Tensor, global_BW: Tensor) -> Tensor:
        return super().combine(residual_BKW, global_BW - global_BW.mean(dim=0))


class OtherResidual(PIE):
    def with_residual(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        out, residual_BKW = super().with_residual(*inputs)
        return out, residual_BKW[:, :1]


class OtherResult(PIE):
    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs) * 2


class OneVectorOfTwo(Mean):
    num_embeddings = 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ContextPadsRead, "padding changes|under the mask changes|not finite"),
        (ContextMatesRead, "batch mates change"),
        (ContextOrderRead, "the order matters"),
        (SummaryMatesRead, "batch mates change"),
        (OtherResidual, r"the residual has shape \(4, 1, 8\)"),
        (OtherResult, "with_residual gives another result"),
        (OneVectorOfTwo, r"the result has shape \(4, 8\), expected \(4, 2, 8\)"),
    ],
)
def test_the_contract_finds_what_is_broken(broken: type[Aggregator], message: str):
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=message):
        check_aggregator(broken(8), 8)


def test_a_summary_of_another_width_is_always_given():
    torch.manual_seed(0)
    check_aggregator(PIE(8, width=5), 8)
