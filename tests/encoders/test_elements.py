"""Rows of padded sets: their elements; extra copies must not change outputs, statistics or gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polypool.encoders.elements import Rows
from polypool.encoders.visual.stored import Regions, StackedRegions


def padded(sizes: list[int], longest: int, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    mask_BN = torch.arange(longest) < torch.tensor(sizes)[:, None]
    x_BNF = torch.randn(len(sizes), longest, width, generator=draw, dtype=torch.float64)
    return x_BNF.masked_fill(~mask_BN[..., None], float("nan")), mask_BN


@pytest.mark.parametrize(
    ("sizes", "longest", "rows"),
    [([30, 50, 1], 50, 128), ([32, 32], 50, 64), ([3, 1], 3, 6), ([4, 4], 4, 8), ([0, 0], 4, 0)],
)
def test_rows_are_real_elements_and_copies_of_first(sizes, longest, rows):
    x_BNF, mask_BN = padded(sizes, longest)
    x_RF = Rows(mask_BN).of(x_BNF)
    assert len(x_RF) == rows
    torch.testing.assert_close(x_RF[: sum(sizes)], x_BNF[mask_BN], rtol=0, atol=0)
    assert (x_RF[sum(sizes) :] == x_RF[:1]).all()
    sets_BNF, real_BN = Rows(mask_BN).sets(x_RF), mask_BN[..., None].expand_as(x_BNF)
    torch.testing.assert_close(sets_BNF[real_BN], x_BNF[real_BN], rtol=0, atol=0)
    assert (sets_BNF[~real_BN] == 0).all()


@pytest.mark.parametrize("kind", [Regions, StackedRegions])
@pytest.mark.parametrize(("sizes", "longest"), [([30, 50, 1], 50), ([3, 1], 3), ([4, 4], 4)])
def test_batch_norm_encoders_ignore_padding(kind, sizes, longest):
    x_BNF, mask_BN = padded(sizes, longest)
    torch.manual_seed(0)
    encoder = kind(
        {"dim": 5}, width=6, hidden=4, **({"dropout": 0.0} if kind is StackedRegions else {})
    ).double()

    out_BND, _ = encoder(x_BNF, mask_BN)
    out_BND[mask_BN].pow(3).sum().backward()
    gradients = [weight.grad.clone() for weight in encoder.parameters()]
    mean_D, variance_D = encoder.norm.running_mean.clone(), encoder.norm.running_var.clone()

    encoder.zero_grad()
    x_RF = x_BNF[mask_BN]
    mapped_RD = encoder.fc(x_RF)
    down_RH = encoder.down(mapped_RD if kind is StackedRegions else x_RF)
    norm = encoder.norm
    normal_RH = nn.functional.batch_norm(down_RH, None, None, norm.weight, norm.bias, True, eps=norm.eps)
    expected_RD = mapped_RD + encoder.up(normal_RH.relu())
    expected_RD.pow(3).sum().backward()

    torch.testing.assert_close(out_BND[mask_BN], expected_RD)
    torch.testing.assert_close(gradients, [weight.grad for weight in encoder.parameters()])
    torch.testing.assert_close(mean_D, 0.1 * down_RH.mean(dim=0))
    torch.testing.assert_close(variance_D, 0.9 + 0.1 * down_RH.var(dim=0))
