"""PCME++: certainty, NaN and pseudo-positives; test_recorded_objectives.py compares recorded outputs."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from polypool.infra.registry import OBJECTIVES, SIMILARITIES
from polypool.tasks.objectives.objective import batch_positives


def gaussians(size: int, dim: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = (torch.randn(size, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    return torch.stack([normalize(mean, dim=-1), log_variance - 1], dim=1)


def test_csd_prefers_certain_match_and_propagates_nan():
    similarity, x = SIMILARITIES.build("csd"), gaussians(1)
    sure, unsure = x.clone(), x.clone()
    unsure[:, 1] += 0.1
    assert similarity(x, sure) > similarity(x, unsure)
    spoilt = gaussians(3)
    torch.testing.assert_close(
        similarity.pairs(spoilt, spoilt[[1, 2, 0]]), similarity(spoilt, spoilt)[range(3), [1, 2, 0]]
    )
    spoilt[1, 1, 0] = torch.nan
    assert similarity(spoilt, x).isnan().flatten().tolist() == [False, True, False]


def test_pseudo_positives_compare_with_lowest_positive():
    objective = OBJECTIVES.build("pcmepp")
    sim_VT, row_T = torch.tensor([[-3.0, -1.0, -2.0], [-4.0, -4.0, -1.0]]), torch.tensor([0, 0, 1])
    positive_VT = batch_positives(torch.arange(2), row_T)
    terms = objective(sim_VT, row_T, positive_VT, epoch=0.0)
    assert terms["pseudo_positives"].item() == pytest.approx((1 / 2 + 0) / 2)
    order = [1, 0, 2]
    reordered = objective(sim_VT[:, order], row_T, positive_VT, epoch=0.0)
    assert reordered["loss"].item() == pytest.approx(terms["loss"].item())
