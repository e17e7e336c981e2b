"""Triton kernels: on a GPU if available, else in Triton's interpreter."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from polypool.aggregators.random_sets import random_sets  # noqa: E402
from polypool.aggregators.ranks.kernels import cuda  # noqa: E402


def sets(dim):
    """Return sets whose real elements are shuffled among pads, which hold NaN."""
    x_BND, mask_BN = random_sets([5, 1, 9, 37, 2], dim, pad=2)
    order_N = torch.randperm(mask_BN.shape[1], generator=torch.Generator().manual_seed(0))
    x_BND, mask_BN = x_BND[:, order_N], mask_BN[:, order_N]
    return x_BND.masked_fill(~mask_BN[..., None], torch.nan), mask_BN


def formula(x_BND, mask_BN):
    """Sort with torch: equal elements in input order, zeros after the real ones."""
    order_BND = (
        x_BND.detach()
        .masked_fill(~mask_BN[..., None], -torch.inf)
        .argsort(dim=1, descending=True, stable=True)
    )
    real_BN = torch.arange(mask_BN.shape[1]) < mask_BN.sum(dim=1, keepdim=True)
    return x_BND.gather(1, order_BND).masked_fill(~real_BN[..., None], 0.0)


@pytest.mark.parametrize("dim", [1, 20])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_sorted_sum_matches_torch(dim, per_channel, dtype):
    x_BND, mask_BN = sets(dim)
    x_BND = x_BND.to(dtype).float()
    weight_BNC, cot_BD = torch.randn(*mask_BN.shape, dim if per_channel else 1), torch.randn(5, dim)
    expected = gradients(lambda x, w: (formula(x, mask_BN) * w).sum(dim=1), cot_BD, x_BND, weight_BNC)
    on_device = [part.to(DEVICE) for part in (cot_BD, x_BND, weight_BNC)]
    found = gradients(lambda x, w: cuda.SortedSum.apply(x, w, mask_BN.to(DEVICE)), *on_device)
    torch.testing.assert_close([part.cpu() for part in found], expected)


@pytest.mark.parametrize("dim", [1, 20])
def test_triton_sort_matches_torch(dim):
    x_BND, mask_BN = sets(dim)
    cot_BND = torch.randn(x_BND.shape)
    expected = gradients(lambda x: formula(x, mask_BN), cot_BND, x_BND)
    found = gradients(
        lambda x: cuda.SortDescending.apply(x, mask_BN.to(DEVICE)), cot_BND.to(DEVICE), x_BND.to(DEVICE)
    )
    torch.testing.assert_close([part.cpu() for part in found], expected)


def test_equal_elements_rank_in_input_order():
    x_BND = torch.tensor([2.0, 1.0, 2.0, 2.0], device=DEVICE).reshape(1, 4, 1).requires_grad_()
    weight_BNC = torch.tensor([0.4, 0.3, 0.2, 0.1], device=DEVICE).reshape(1, 4, 1)
    mask_BN = torch.ones(1, 4, dtype=torch.bool, device=DEVICE)
    cuda.SortedSum.apply(x_BND, weight_BNC, mask_BN).sum().backward()
    torch.testing.assert_close(x_BND.grad.flatten().cpu(), torch.tensor([0.4, 0.1, 0.3, 0.2]))


def test_negative_zero_ties_with_positive_zero():
    x_BND = torch.tensor([0.0, -0.0, 1.0, 0.0], device=DEVICE).reshape(1, 4, 1).requires_grad_()
    weight_BNC = torch.tensor([0.4, 0.3, 0.2, 0.1], device=DEVICE).reshape(1, 4, 1)
    cuda.SortedSum.apply(
        x_BND, weight_BNC, torch.ones(1, 4, dtype=torch.bool, device=DEVICE)
    ).sum().backward()
    torch.testing.assert_close(x_BND.grad.flatten().cpu(), torch.tensor([0.3, 0.2, 0.4, 0.1]))


def test_nan_stays_in_its_channel():
    x_BND, mask_BN = random_sets([4, 3], 3)
    x_BND[0, 1, 0] = torch.nan
    weight_BNC = torch.full((2, 4, 1), 0.25)
    out_BD = cuda.SortedSum.apply(x_BND.to(DEVICE), weight_BNC.to(DEVICE), mask_BN.to(DEVICE)).cpu()
    assert out_BD.isnan().nonzero().tolist() == [[0, 0]]


def gradients(function, cot, *inputs):
    inputs = [part.clone().requires_grad_() for part in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad((out * cot).sum(), inputs)]


@pytest.mark.parametrize("sizes", [[1], [3, 1, 7, 5], [*range(1, 20)]])
def test_triton_shared_gru_matches_torch_gru(sizes):
    gru = torch.nn.GRU(8, 16, batch_first=True, bidirectional=True).double()
    x_NC = torch.randn(max(sizes), 8, dtype=torch.float64)
    cot_SNH = torch.zeros(len(sizes), max(sizes), 16, dtype=torch.float64)
    for row, size in enumerate(sizes):
        cot_SNH[row, :size] = torch.randn(size, 16)
    names, weights = zip(*gru.named_parameters(), strict=True)

    def by_torch(x_NC, *weights):
        parts = []
        for size in sizes:
            state_1NH2, _ = torch.func.functional_call(
                gru, dict(zip(names, weights, strict=True)), x_NC[None, :size]
            )
            mean_NH = state_1NH2[0].unflatten(1, (2, 16)).mean(dim=1)
            parts.append(torch.nn.functional.pad(mean_NH, (0, 0, 0, max(sizes) - size)))
        return torch.stack(parts)

    expected = gradients(by_torch, cot_SNH, x_NC, *weights)
    size_S, single = (
        torch.tensor(sizes, device=DEVICE),
        [x.detach().float().to(DEVICE) for x in (x_NC, *weights)],
    )
    found = gradients(
        lambda *all: cuda.SharedGRU.apply(all[0], size_S, *all[1:]), cot_SNH.float().to(DEVICE), *single
    )
    for row, size in enumerate(sizes):
        found[0][row, size:] = 0.0
    torch.testing.assert_close([x.cpu().double() for x in found], expected, rtol=1e-4, atol=1e-4)
