"""Attention under CPU autocast is computed in float32."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from polypool.infra.compute.attention import attend_in_float32


@pytest.fixture(autouse=True)
def _in_float32():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend_in_float32()


@pytest.fixture
def parts_BHND() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(3, 2, count, 8, requires_grad=True) for count in (5, 7, 7))


def formula(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention in float64; `bias` is added to the scores."""
    score = query.double() @ key.double().transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias.double()
    return score.softmax(dim=-1) @ value.double()


class Calls(TorchDispatchMode):
    """Records the dtype of each call of a torch attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "attention" in str(func):
            self.seen.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


MASK = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5])[:, None, None, :]
BIAS = torch.linspace(-1, 1, 3 * 2 * 5 * 7).reshape(3, 2, 5, 7)


@pytest.mark.parametrize(
    ("mask", "bias"),
    [
        (None, torch.zeros(1)),
        (MASK, torch.zeros(1).where(MASK, -math.inf)),
        (BIAS, BIAS),
        (BIAS.bfloat16(), BIAS.bfloat16()),
    ],
    ids=["none", "bool", "float32", "bfloat16"],
)
def test_only_attention_output_is_rounded(parts_BHND, mask, bias):
    expected = formula(*parts_BHND, bias)
    with torch.autocast("cpu", torch.bfloat16):
        found = F.scaled_dot_product_attention(*parts_BHND, mask)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    weight = torch.linspace(-1, 1, found.numel()).reshape(found.shape).bfloat16()
    gradients = torch.autograd.grad((expected * weight).sum(), parts_BHND)
    for ours, exact in zip(torch.autograd.grad((found * weight).sum(), parts_BHND), gradients, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)


def test_float64_and_calls_outside_autocast_are_unchanged(parts_BHND):
    wide = [part.double() for part in parts_BHND]
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            F.scaled_dot_product_attention(*wide, BIAS.double()), formula(*parts_BHND, BIAS)
        )
    assert F.scaled_dot_product_attention(*(part.bfloat16() for part in parts_BHND)).dtype == torch.bfloat16
    assert F.scaled_dot_product_attention(*parts_BHND).dtype == torch.float32


def test_torch_modules_attend_in_float32():
    module = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    with Calls() as calls:
        with torch.autocast("cpu", torch.bfloat16):
            out_BND = module(torch.randn(3, 7, 16))
        out_BND.float().sum().backward()
    assert calls.seen == [torch.float32] * 2
