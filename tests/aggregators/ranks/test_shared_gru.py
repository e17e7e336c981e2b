"""The GRU over one sequence shared by sets of all sizes, against torch's GRU over each size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polypool.aggregators.ranks.gpo import GRUDecoder
from polypool.aggregators.ranks.kernels import native

pytestmark = pytest.mark.skipif(native.library(torch.float32) is None, reason="no compiler on this machine")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("sizes", [[5, 1, 9, 2, 12], [1]])
def test_gru_decoder_matches_torch_gru(sizes, dtype, tolerance):
    torch.manual_seed(0)
    decoder, whole = GRUDecoder(6, 5).to(dtype), nn.GRU(6, 5, batch_first=True, bidirectional=True).double()
    whole.load_state_dict(decoder.state_dict())
    x_NC = torch.randn(max(sizes), 6, dtype=dtype, requires_grad=True)
    wide_NC = x_NC.detach().double().requires_grad_()
    states_SNH, found, wanted = decoder(x_NC[None], torch.tensor(sizes)), [], []
    for size, found_NH in zip(sizes, states_SNH, strict=True):
        cot_NH = torch.randn(size, 5, dtype=torch.float64)
        wanted_NH = whole(wide_NC[None, :size])[0][0].unflatten(1, (2, 5)).mean(dim=1)
        torch.testing.assert_close(found_NH[:size].double(), wanted_NH, rtol=tolerance, atol=tolerance)
        found.append((found_NH[:size] * cot_NH.to(dtype)).sum())
        wanted.append((wanted_NH * cot_NH).sum())
    of_ours = torch.autograd.grad(sum(found), (x_NC, *decoder.parameters()), retain_graph=True)
    of_torch = torch.autograd.grad(sum(wanted), (wide_NC, *whole.parameters()))
    again = torch.autograd.grad(sum(found), (x_NC, *decoder.parameters()))
    for ours, twice, theirs in zip(of_ours, again, of_torch, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=10 * tolerance, atol=10 * tolerance)
        assert torch.equal(ours, twice)


def test_weight_change_before_backward_raises():
    decoder = GRUDecoder(6, 5)
    states_1NH = decoder(torch.randn(1, 4, 6), torch.tensor([4]))
    with torch.no_grad():
        decoder.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states_1NH.sum().backward()
