"""TransMIL (Shao et al., NeurIPS 2021): self-attention with a token, and convolutions on a square."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.aggregators.attention import check_heads, with_token
from polypool.aggregators.masks import softmax_over_elements, zero_pads
from polypool.infra.compute.gru import taken
from polypool.infra.registry import AGGREGATORS

_REACH = 16  # reach of the convolution on each side, in elements


@AGGREGATORS.register("transmil")
class TransMIL(Aggregator):
    """Self-attention, convolutions over the elements laid out as a square, self-attention, a layer norm.

    N elements fill a square with side ceil(sqrt(N)), row by row; the first elements are repeated to fill the rest and
    count twice, as in the authors' code. Each set has a separate square.

    Deviations: the code approximates attention for bags of thousands by Nystrom's method with D / 2 landmarks, and
    includes the zero elements that pad a bag to a multiple of them; here attention is exact, which is cheap for some
    hundreds of elements. No dropout; the first map with its ReLU belongs to the encoder.

    Args:
        dim: width of the elements; `heads` must divide it.
        heads: number of heads in both layers.
    """

    symmetric = False

    def __init__(self, dim: int, *, heads: int = 8) -> None:
        super().__init__()
        self.token_D = nn.Parameter(torch.randn(dim))
        self.first, self.second = _Layer(dim, heads=heads), _Layer(dim, heads=heads)
        self.places = _PositionalConvolutions(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x_BND: Tensor, mask_BN: Tensor) -> Pooled:
        """Return the tokens `(B, D)` and the elements' weights in the last layer `(B, N)`."""
        column_BP, side_B1 = _square(mask_BN)
        real_BP = torch.arange(column_BP.shape[1], device=side_B1.device) < side_B1**2
        x_BPD = taken(zero_pads(x_BND, mask_BN), column_BP)
        x_BMD, mask_BM = with_token(self.token_D, x_BPD, real_BP)
        x_BMD, _ = self.first(x_BMD, mask_BM)
        x_BMD = torch.cat((x_BMD[:, :1], self.places(x_BMD[:, 1:], side_B1)), dim=1)
        token_B1D, weight_BHKM = self.second(x_BMD, mask_BM, queries=1)
        weight_BP = weight_BHKM[:, :, 0, 1:].mean(dim=1)
        weight_BN = weight_BP.new_zeros(mask_BN.shape).scatter_add(1, column_BP, weight_BP)
        return Pooled(self.norm(token_B1D.squeeze(1)), weights=weight_BN)


class _Layer(nn.Module):
    """Pre-norm residual attention; a depthwise convolution adds neighbouring values."""

    def __init__(self, dim: int, *, heads: int) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.query_key_value, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.near = nn.Conv2d(heads, heads, (2 * _REACH + 1, 1), groups=heads, bias=False)

    def forward(self, x_BMD: Tensor, mask_BM: Tensor, *, queries: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the first `queries` elements `(B, K, D)`, or all, and their weights `(B, H, K, M)`."""
        normal_BMD = zero_pads(self.norm(x_BMD), mask_BM)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(normal_BMD).chunk(3, dim=-1)
        )
        logit_BHKM = query[:, :, :queries] @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        weight_BHKM = softmax_over_elements(logit_BHKM, mask_BM[:, None, None])
        got_BHKE = (weight_BHKM + self._near(value.shape[2])[:, :queries]) @ value
        return x_BMD[:, :queries] + self.out(got_BHKE.transpose(1, 2).flatten(2)), weight_BHKM

    def _near(self, places: int) -> Tensor:
        """Return the convolution as weights of neighbours `(H, M, M)`: a matrix product has a cheaper gradient."""
        place_M = torch.arange(places, device=self.near.weight.device)
        step_MM = place_M - place_M[:, None] + _REACH
        outside_MM = (step_MM < 0) | (step_MM > 2 * _REACH)
        return self.near.weight.flatten(1)[:, step_MM.clamp(0, 2 * _REACH)].masked_fill(outside_MM, 0.0)


class _PositionalConvolutions(nn.Module):
    """PPEG of the authors' code: each element plus three depthwise convolutions around it, fused into one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wide, self.middle, self.narrow = (nn.Conv2d(dim, dim, size, groups=dim) for size in (7, 5, 3))

    def forward(self, x_BPD: Tensor, side_B1: Tensor) -> Tensor:
        """Return elements `(B, P, D)` of squares with these sides, flattened row by row; P = S^2 positions."""
        side = math.isqrt(x_BPD.shape[1] - 1) + 1
        place_P = torch.arange(x_BPD.shape[1], device=x_BPD.device)
        row_P, column_P = place_P // side, place_P % side
        outside_BP = (row_P >= side_B1) | (column_P >= side_B1)
        grid_BPD = taken(x_BPD, (row_P * side_B1 + column_P).masked_fill(outside_BP, 0))
        grid_BPD = grid_BPD.masked_fill(outside_BP[..., None], 0.0)
        grid_BDSS = grid_BPD.transpose(1, 2).reshape(x_BPD.shape[0], x_BPD.shape[2], side, side)
        kernel = self.wide.weight + F.pad(self.middle.weight, [1] * 4) + F.pad(self.narrow.weight, [2] * 4)
        biases = [cast("Tensor", each.bias) for each in (self.wide, self.middle, self.narrow)]
        bias_D = torch.stack(biases).sum(dim=0)
        near_BDSS = F.conv2d(grid_BDSS, kernel, bias_D, padding=3, groups=len(bias_D))
        cell_BP = place_P // side_B1 * side + place_P % side_B1
        cell_BP = cell_BP.masked_fill(place_P >= side_B1**2, 0)
        return x_BPD + taken(near_BDSS.flatten(2).transpose(1, 2), cell_BP)


def _square(mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the element index of each position `(B, P)` and each set's side `(B, 1)`.

    The side is that of the smallest square with a position for every element. P is the number of positions for a set
    without padding; positions after a smaller square hold an arbitrary index.
    """
    size_B1, padded = mask_BN.sum(dim=1, keepdim=True), mask_BN.shape[1]
    place_P = torch.arange((math.isqrt(padded - 1) + 1) ** 2, device=mask_BN.device)
    element_BP = (place_P - size_B1 * (place_P >= size_B1)).clamp(max=padded - 1)
    before_BN = mask_BN.long().cumsum(dim=1) - 1
    number_BN = before_BN.where(
        mask_BN, size_B1 + (~mask_BN).long().cumsum(dim=1) - 1
    )  # padding is numbered after the real elements
    every_BN = torch.arange(padded, device=mask_BN.device).expand_as(number_BN)
    column_BN = torch.zeros_like(number_BN).scatter(1, number_BN, every_BN)
    return column_BN.gather(1, element_BP), size_B1.to(torch.float32).sqrt().ceil().long()
