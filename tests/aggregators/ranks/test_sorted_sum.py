import itertools

import numpy as np
import pytest
import torch

from polypool.aggregators.random_sets import random_sets
from polypool.aggregators.ranks import sorted_sum as module
from polypool.aggregators.ranks.kernels import native
from polypool.aggregators.ranks.sorted_sum import sort_descending, sorted_sum

SIZES = [5, 1, 16, 37]


@pytest.fixture(params=["native", "torch"])
def way(request, monkeypatch):
    """Use each CPU implementation: compiled code, and torch where there is no compiler."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda dtype: None)
    elif native.library(torch.float32) is None:
        pytest.skip("no compiler on this machine")
    return request.param


def scattered(sizes, dim, *, dtype=torch.float64, seed=0):
    """Return sets whose real elements are shuffled among pads, which hold NaN."""
    x_BND, mask_BN = random_sets(sizes, dim, pad=3, seed=seed, dtype=dtype)
    order_N = torch.randperm(mask_BN.shape[1], generator=torch.Generator().manual_seed(seed))
    x_BND, mask_BN = x_BND[:, order_N], mask_BN[:, order_N]
    return x_BND.masked_fill(~mask_BN[..., None], torch.nan), mask_BN


def explicit(x_BND, weight, mask_BN):
    """Compute the sum and its gradients by the definition, in loops over sets, channels and ranks."""
    out_BD = np.zeros((len(x_BND), x_BND.shape[2]))
    grad_x, grad_w = np.zeros(x_BND.shape), np.zeros(weight.shape)
    g_BD = cotangent(out_BD.shape).numpy()
    for b, d in itertools.product(*map(range, out_BD.shape)):
        real = [n for n in range(x_BND.shape[1]) if mask_BN[b, n]]
        for k, n in enumerate(sorted(real, key=lambda n: -x_BND[b, n, d])):
            at = (b, k) if weight.ndim == 2 else (b, k, d)
            out_BD[b, d] += weight[at] * x_BND[b, n, d]
            grad_x[b, n, d] += weight[at] * g_BD[b, d]
            grad_w[at] += x_BND[b, n, d] * g_BD[b, d]
    return out_BD, grad_x, grad_w


def cotangent(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 21, 270])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorted_sum_matches_its_definition(way, dim, per_channel, dtype):
    x_BND, mask_BN = scattered(SIZES, dim, dtype=dtype)
    weight = torch.randn(*mask_BN.shape, *[dim] * per_channel, dtype=dtype)
    x_BND.requires_grad_()
    weight.requires_grad_()
    out_BD = sorted_sum(x_BND, weight, mask_BN)
    out_BD.backward(cotangent(out_BD.shape).to(dtype))
    expected = explicit(x_BND.detach().double().numpy(), weight.detach().double().numpy(), mask_BN.numpy())
    for found, wanted in zip((out_BD.detach(), x_BND.grad, weight.grad), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_set_size_sorts_and_backpropagates(way, dtype):
    x_BND, mask_BN = scattered([*range(1, 71), 127, 128, 129, 300], 17, dtype=dtype)
    rank_BN = torch.arange(mask_BN.shape[1], dtype=dtype).expand(mask_BN.shape)
    x_BND.requires_grad_()
    sorted_sum(x_BND, rank_BN, mask_BN).sum().backward()
    sorted_BND = sort_descending(x_BND.detach(), mask_BN)
    for x_ND, mask_N, sorted_ND, rank_ND in zip(x_BND.detach(), mask_BN, sorted_BND, x_BND.grad, strict=True):
        real_ND, size = x_ND[mask_N], int(mask_N.sum())
        expected_ND, from_ND = real_ND.sort(dim=0, descending=True)
        assert torch.equal(sorted_ND[:size], expected_ND)
        assert (sorted_ND[size:] == 0).all()
        assert torch.equal(rank_ND[mask_N].gather(0, from_ND), rank_BN[0, :size, None].expand_as(from_ND))


def test_nan_inf_and_ties_get_one_rank_each(way):
    values = [torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, 1.0, 5e-324, -1e308]
    draw = torch.Generator().manual_seed(0)
    choice_BND = torch.randint(len(values), (40, 9, 5), generator=draw)
    x_BND = torch.tensor(values, dtype=torch.float64)[choice_BND].requires_grad_()
    weight_BN = torch.rand(40, 9, dtype=torch.float64, generator=draw)
    sorted_sum(x_BND, weight_BN, torch.ones(40, 9, dtype=torch.bool)).sum().backward()
    given_BND = x_BND.grad.sort(dim=1).values
    assert torch.equal(given_BND, weight_BN.sort(dim=1).values[..., None].expand_as(given_BND))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(way, dtype):
    x_BND, mask_BN = random_sets([30, 11], 7)
    x_BND, weight_BN = x_BND.to(dtype), torch.rand(mask_BN.shape).to(dtype)
    out_BD = sorted_sum(x_BND, weight_BN, mask_BN)
    expected_BD, _, _ = explicit(x_BND.double().numpy(), weight_BN.double().numpy(), mask_BN.numpy())
    assert out_BD.dtype == dtype
    torch.testing.assert_close(out_BD, torch.from_numpy(expected_BD).to(dtype))


def test_thread_count_does_not_change_result(way):
    x_BND, mask_BN = random_sets([40, 3, 77], 700)
    x_BND.requires_grad_()
    weight_BN = torch.rand(mask_BN.shape, requires_grad=True)
    found, threads = [], torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        out_BD = sorted_sum(x_BND, weight_BN, mask_BN)
        found.append((out_BD, *torch.autograd.grad(out_BD.sum(), (x_BND, weight_BN))))
    torch.set_num_threads(threads)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_memory_layout_does_not_change_result(way):
    x_BND, mask_BN = random_sets([6, 4, 5], 5)
    weight_BND, found = torch.rand(x_BND.shape), []
    for lay in (torch.clone, lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2)):
        x, weight, mask = lay(x_BND).requires_grad_(), lay(weight_BND).requires_grad_(), lay(mask_BN)
        loss = (sorted_sum(x, weight, mask) * lay(weight_BND[:, 0])).sum()
        loss = loss + (sort_descending(x, mask) * lay(weight_BND)).sum()
        found.append((loss, *torch.autograd.grad(loss, (x, weight))))
    torch.testing.assert_close(*found)


def test_weights_beyond_set_size_are_ignored(way):
    x_BND, mask_BN = random_sets([6, 4], 5)
    weight_BN = torch.rand(mask_BN.shape)
    beyond_BN = weight_BN.clone()
    beyond_BN[1, 4:] = torch.nan
    torch.testing.assert_close(sorted_sum(x_BND, beyond_BN, mask_BN), sorted_sum(x_BND, weight_BN, mask_BN))


@pytest.mark.parametrize(("size", "dim"), [(5, 8), (4, 3)])
def test_large_sets_and_few_channels_use_torch(monkeypatch, size, dim):
    monkeypatch.setattr(native, "LARGEST", 4)
    monkeypatch.setattr(native, "_call", lambda *_: pytest.fail("compiled code was called"))
    x_BND, mask_BN = random_sets([size, 3], dim)
    sorted_sum(x_BND, torch.ones(2, size), mask_BN)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", ""])
def test_missing_compiler_falls_back_to_torch(compiler, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native, "library", native.library.__wrapped__)
    assert native.library(torch.float32) is None
    x_BND, mask_BN = random_sets([4, 3], 3)
    assert module.sorted_sum(x_BND, torch.ones(2, 4), mask_BN).isfinite().all()


@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000, -1])
def test_nan_of_any_bit_pattern_is_summed(way, bits):
    x_BND, mask_BN = random_sets([5, 3], 4)
    mask_BN = mask_BN.flip(1)  # pads come first
    x_BND[1, -1, 2] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    nan_BD = sorted_sum(x_BND, torch.ones(mask_BN.shape), mask_BN).isnan()
    assert nan_BD.nonzero().tolist() == [[1, 2]]
