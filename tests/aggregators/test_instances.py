"""Multiple instance learning: training masks of `acmil`, repeated elements in the square of `transmil`."""

import pytest
import torch
from explicit import trained
from torch import Tensor

from polypool.aggregators.random_sets import random_sets
from polypool.infra.compute.dropout import Draws, drawn
from polypool.infra.registry import AGGREGATORS


def one_branch(**parameters: float) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """Return an untrained one-branch `acmil`, sets of 9 and 2, and all weights in evaluation."""
    module = AGGREGATORS.build("acmil", 6, k=1, **parameters)
    x_BND, mask_BN = random_sets([9, 2], 6)
    return module, x_BND, module.eval()(x_BND, mask_BN).weights


def test_acmil_masks_top_elements_at_drop_rate():
    module, x_BND, weight_BN = one_branch(top=4, drop=0.3)
    x_BND, weight_N = x_BND[:1].expand(2000, -1, -1), weight_BN[0]
    masked_SN = module.train()(x_BND, torch.ones(2000, 9, dtype=torch.bool)).weights == 0
    often_N = masked_SN.float().mean(dim=0)
    best = weight_N.topk(4).indices
    torch.testing.assert_close(often_N[best], torch.full((4,), 0.3), atol=0.05, rtol=0)
    assert often_N.sum() == pytest.approx(often_N[best].sum())


def test_acmil_never_masks_all_elements():
    module, x_BND, weight_BN = one_branch(top=5, drop=1.0)
    mask_BN = torch.arange(9) < torch.tensor([[9], [2]])
    vectors, _, trained_BN, _ = module.train()(x_BND, mask_BN)
    torch.testing.assert_close(trained_BN[1], weight_BN[1])  # both of its elements are in the top 5
    assert ((trained_BN[0] > 0) == (weight_BN[0] < weight_BN[0].topk(5).values.min())).all()
    assert vectors.isfinite().all()


def test_acmil_masking_depends_on_sample_not_padding():
    module, x_BND, _ = one_branch(top=5, drop=0.5)
    mask_BN = torch.arange(9) < torch.tensor([[9], [2]])
    module.train()
    with drawn(Draws(seed=0, step=0, first=0, samples=2)):
        together = module(x_BND, mask_BN).weights
    with drawn(Draws(seed=0, step=0, first=1, samples=1)):
        alone = module(x_BND[1:, :2], mask_BN[1:, :2]).weights
    torch.testing.assert_close(together[1:, :2], alone)


def test_transmil_sums_weights_of_repeated_elements():
    module = trained("transmil(heads=2)", 6).float()
    x_BND, mask_BN = random_sets([5, 25, 1], 6)
    weight_BN = module(x_BND, mask_BN).weights
    module.second.query_key_value.weight.data[:12] = 0  # equal weights everywhere, the token included
    alike_BN = module(x_BND, mask_BN).weights
    assert (weight_BN.sum(dim=1) < 1).all()
    torch.testing.assert_close(alike_BN[0, :6] * 10, torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0, 0.0]))
    torch.testing.assert_close(alike_BN[1] * 26, torch.ones(25))
    torch.testing.assert_close(alike_BN[2, :1], torch.tensor([0.5]))
