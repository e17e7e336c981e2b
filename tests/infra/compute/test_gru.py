from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polypool.infra.compute import gru as module
from polypool.infra.compute import recurrence
from polypool.infra.compute.gru import FEW, GRU, MANY, WIDE

OURS, TORCHS = 0, 1 << 40
SIZES = [[3, 9, 1, 9, 4, 2], [1, 1], [5], [2, 2, 2], [1, 7]]


@pytest.fixture(autouse=True, params=[OURS])
def computed(request, monkeypatch) -> None:
    """Use our GRU for all sizes; with `TORCHS`, torch's."""
    for name in ("MANY", "WIDE", "FEW"):
        monkeypatch.setattr(module, name, request.param)


both = pytest.mark.parametrize("computed", [OURS, TORCHS], indirect=True)


def explicit(gru: GRU, x_BNE: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor, nn.GRU]:
    """Reference: torch's GRU applied to each set separately."""
    whole = nn.GRU(x_BNE.shape[2], gru.hidden_size, bidirectional=True).to(x_BNE.dtype)
    whole.load_state_dict(gru.state_dict())
    state_BNRH = x_BNE.new_zeros(*x_BNE.shape[:2], 2, gru.hidden_size)
    last = []
    for b, size in enumerate(size_B.tolist()):
        states, last_RH = whole(x_BNE[b, :size])
        state_BNRH[b, :size] = states.unflatten(-1, (2, -1))
        last.append(last_RH)
    return state_BNRH, torch.stack(last, dim=1), whole


def gradients(states: Tensor, last: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=draw, dtype=x.dtype) for x in (states, last)]
    return torch.autograd.grad((states * weights[0]).sum() + (last * weights[1]).sum(), of)


@both
@pytest.mark.parametrize("sizes", SIZES)
def test_states_and_gradients_match_torch_gru(sizes):
    torch.manual_seed(0)
    gru, size_B = GRU(5, 7).double(), torch.tensor(sizes)
    x_BNE = torch.randn(len(sizes), max(sizes) + 2, 5, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        x_BNE[torch.arange(x_BNE.shape[1]) >= size_B[:, None]] = torch.nan
    found, (*expected, whole) = gru(x_BNE, size_B), explicit(gru, x_BNE, size_B)
    of_gru = gradients(*found, x_BNE, *gru.parameters())
    of_each = gradients(*expected, x_BNE, *whole.parameters())
    for ours, theirs in zip([*found, *of_gru], [*expected, *of_each], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_and_bfloat16_match_packed_gru(dtype):
    torch.manual_seed(0)
    gru, size_B = GRU(12, 256).to(dtype), torch.tensor([4, 11, 7] + [9] * 8)
    x_BNE = torch.randn(11, 11, 12, dtype=dtype, requires_grad=True)
    tolerance = 2e-6 if dtype == torch.float32 else 3e-2
    ours, theirs = gru(x_BNE, size_B), gru._packed(x_BNE, size_B)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    if dtype == torch.float32:
        of = x_BNE, *gru.parameters()
        for found, expected in zip(gradients(*ours, *of), gradients(*theirs, *of), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("sets", [FEW, FEW + 1, MANY // 16 - 1, MANY // 16])
@pytest.mark.parametrize("hidden", [16, WIDE])
@pytest.mark.parametrize("training", [True, False])
def test_custom_gru_is_used_where_it_is_faster(monkeypatch, sets, hidden, training):
    taken, read = [], module._Read.apply
    monkeypatch.setattr(module._Read, "apply", lambda *given: taken.append(1) or read(*given))
    for name, value in {"MANY": MANY, "WIDE": WIDE, "FEW": FEW}.items():
        monkeypatch.setattr(module, name, value)
    with torch.set_grad_enabled(training):
        GRU(2, hidden)(torch.randn(sets, 1, 2), torch.ones(sets, dtype=torch.long))
    expected = sets * hidden >= MANY if training else hidden == WIDE and sets > FEW
    assert bool(taken) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("plus", [True, False])
def test_product_adds_bias_and_addend(dtype, bias, plus):
    torch.manual_seed(0)
    x_MK, weight_NK, bias_N, plus_MN = (
        torch.randn(s, dtype=dtype) for s in ((11, 24), (40, 24), 40, (11, 40))
    )
    product = recurrence.Product(weight_NK, bias_N if bias else None)
    expected = x_MK.double() @ weight_NK.double().T + bias_N * bias + plus_MN * plus
    before = plus_MN.clone()
    found = product(x_MK, plus_MN=plus_MN if plus else None)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(plus_MN, before)


@both
def test_frozen_weights_and_inputs_need_no_gradient():
    gru, size_B = GRU(3, 4), torch.tensor([2, 5])
    x_BNE = torch.randn(2, 5, 3)
    gru.requires_grad_(False)
    assert not gru(x_BNE, size_B)[0].requires_grad
    gru.weight_hh_l0.requires_grad_()
    (grad,) = gradients(*gru(x_BNE, size_B), gru.weight_hh_l0)
    (expected,) = gradients(*gru._packed(x_BNE, size_B), gru.weight_hh_l0)
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-5)


def test_autocast_keeps_states_and_gradients_in_float32():
    gru, size_B = GRU(3, 64), torch.tensor([2, 5])
    x_BNE = torch.randn(2, 5, 3).bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = gru(x_BNE, size_B)
    theirs = gru(x_BNE.float(), size_B)
    assert ours[0].dtype == torch.float32
    assert torch.equal(ours[0], theirs[0])
    of = x_BNE, gru.weight_hh_l0
    for grad, expected in zip(gradients(*ours, *of), gradients(*theirs, *of), strict=True):
        assert torch.equal(grad, expected)


def test_vmap_returns_the_same_states():
    gru = GRU(3, 4).double()
    x_BNE, size_B = torch.randn(3, 5, 3, dtype=torch.float64), torch.tensor([5, 1, 3])
    expected = gru(x_BNE, size_B)
    for found, one in zip(
        torch.func.vmap(gru, in_dims=(0, None))(x_BNE[None], size_B), expected, strict=True
    ):
        torch.testing.assert_close(found[0], one)
