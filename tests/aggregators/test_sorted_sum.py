from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from aggregators.random_sets import random_sets
from aggregators.ranks import sorted_sum as module
from aggregators.ranks.kernels import native
from aggregators.ranks.sorted_sum import sort_descending, sorted_sum
from infra.errors import InputError

SIZES = [5, 1, 9, 16, 2, 37]


@pytest.fixture(params=["native", "torch"])
def way(request, monkeypatch):
    """Both ways of sorting on the CPU: with compiled code, and with torch where no compiler is at hand."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda dtype: None)
    elif native.library(torch.float32) is None:
        pytest.skip("no compiler on this machine")
    return request.param


def scattered(sizes, dim, *, dtype=torch.float64, seed=0):
    """Sets whose real elements lie anywhere between the pads, which hold NaN."""
    x_BND, mask_BN = random_sets(sizes, dim, pad=3, seed=seed, dtype=dtype)
    order_N = torch.randperm(mask_BN.shape[1], generator=torch.Generator().manual_seed(seed))
    x_BND, mask_BN = x_BND[:, order_N], mask_BN[:, order_N]
    return x_BND.masked_fill(~mask_BN[..., None], torch.nan), mask_BN


def explicit(x_BND, weight, mask_BN):
    """The definition, one set, channel and rank at a time; and its gradients for a result's gradient of `g`."""
    out_BD = np.zeros((len(x_BND), x_BND.shape[2]))
    grad_x, grad_w, g_BD = np.zeros(x_BND.shape), np.zeros(weight.shape), cotangent(out_BD.shape).numpy()
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


@pytest.mark.parametrize("dim", [1, 3, 16, 21])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_follow_the_definition(way, dim, per_channel, dtype):
    x_BND, mask_BN = scattered(SIZES, dim, dtype=dtype)
    weight = torch.randn(*mask_BN.shape, *[dim] * per_channel, dtype=dtype)
    x_BND.requires_grad_()
    weight.requires_grad_()
    out_BD = sorted_sum(x_BND, weight, mask_BN)
    out_BD.backward(cotangent(out_BD.shape).to(dtype))
    expected = explicit(x_BND.detach().double().numpy(), weight.detach().double().numpy(), mask_BN.numpy())
    for found, wanted in zip((out_BD.detach(), x_BND.grad, weight.grad), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


def test_gradients_pass_the_numerical_check(way):
    x_BND, mask_BN = scattered([3, 1, 5], 3)
    x_BND.requires_grad_()
    for shape in (mask_BN.shape, (1, *mask_BN.shape[1:], 3)):
        weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, w: sorted_sum(x, w, mask_BN), (x_BND, weight))
    assert torch.autograd.gradcheck(lambda x: sort_descending(x, mask_BN), (x_BND,))


def test_sorted_values(way):
    x_BND, mask_BN = scattered(SIZES, 5)
    sorted_BND = sort_descending(x_BND, mask_BN)
    for x_ND, mask_N, sorted_ND in zip(x_BND, mask_BN, sorted_BND, strict=True):
        size = int(mask_N.sum())
        np.testing.assert_array_equal(sorted_ND[:size], -np.sort(-x_ND[mask_N].numpy(), axis=0))
        assert (sorted_ND[size:] == 0).all()


def test_only_what_is_needed_gets_a_gradient(way):
    x_BND, mask_BN = scattered([4, 2], 3)
    weight_BN = torch.randn(mask_BN.shape, dtype=torch.float64, requires_grad=True)
    sorted_sum(x_BND, weight_BN, mask_BN).sum().backward()
    assert x_BND.grad is None
    assert (weight_BN.grad[:, 4:] == 0).all()
    sorted_sum(x_BND.requires_grad_(), weight_BN.detach(), mask_BN).sum().backward()
    assert (x_BND.grad[~mask_BN] == 0).all()


def test_tied_elements_share_the_weights_of_their_ranks(way):
    x_BND = torch.tensor([[2.0, 1.0, 2.0, 2.0], [0.0, 0.0, -0.0, 0.0]]).T[None].requires_grad_()
    weight_BN = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    sorted_sum(x_BND, weight_BN, torch.ones(1, 4, dtype=torch.bool)).sum().backward()
    tied, zeros = x_BND.grad[0, :, 0], x_BND.grad[0, :, 1]
    assert tied[1].item() == pytest.approx(0.1)
    assert sorted(tied[[0, 2, 3]].tolist()) == pytest.approx([0.2, 0.3, 0.4])
    assert sorted(zeros.tolist()) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_nan_and_infinity_stay_in_their_channel(way):
    x_BND, mask_BN = random_sets([4, 3], 3)
    clean_BD = sorted_sum(x_BND, torch.full(mask_BN.shape, 0.25), mask_BN)
    x_BND[0, 1, 0], x_BND[1, 2, 1], x_BND[1, 0, 2] = torch.nan, -torch.nan, -torch.inf
    out_BD = sorted_sum(x_BND, torch.full(mask_BN.shape, 0.25), mask_BN)
    assert out_BD[0, 0].isnan()
    assert out_BD[1, 1].isnan()
    assert out_BD[1, 2] == -torch.inf
    for at in ((0, 1), (0, 2), (1, 0)):
        torch.testing.assert_close(out_BD[at], clean_BD[at])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(way, dtype):
    x_BND, mask_BN = random_sets([30, 11], 7)
    x_BND, weight_BN = x_BND.to(dtype), torch.rand(mask_BN.shape).to(dtype)
    out_BD = sorted_sum(x_BND, weight_BN, mask_BN)
    expected_BD, _, _ = explicit(x_BND.double().numpy(), weight_BN.double().numpy(), mask_BN.numpy())
    assert out_BD.dtype == dtype
    torch.testing.assert_close(out_BD, torch.from_numpy(expected_BD).to(dtype))


def test_many_threads_give_the_result_of_one(way):
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


def test_the_layout_in_memory_does_not_matter(way):
    x_BND, mask_BN = random_sets([6, 4], 5)
    weight_BN = torch.rand(mask_BN.shape)
    across = x_BND.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(sorted_sum(across, weight_BN, mask_BN), sorted_sum(x_BND, weight_BN, mask_BN))


def test_what_does_not_fit_is_refused(way):
    x_BND, mask_BN = random_sets([4, 3], 3)
    for mask in (mask_BN.float(), mask_BN[:, :2], mask_BN[0], mask_BN & False):
        with pytest.raises(InputError, match=r"mask|no element"):
            sorted_sum(x_BND, torch.ones(2, 4), mask)
        with pytest.raises(InputError, match=r"mask|no element"):
            sort_descending(x_BND, mask)
    for shape in ((2, 3), (2, 4, 2), (1, 5, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            sorted_sum(x_BND, torch.ones(shape), mask_BN)
    with pytest.raises(ValueError, match="weights on meta"):
        sorted_sum(x_BND, torch.ones(2, 4, device="meta"), mask_BN)
    with pytest.raises(ValueError, match="mask on cpu"):
        sort_descending(x_BND.to("meta"), mask_BN)


def test_a_traced_model_holds_torch_alone():
    x_BND, mask_BN = random_sets([4, 3], 3)
    weight_BN = torch.rand(mask_BN.shape)
    traced = torch.compile(sorted_sum, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(x_BND, weight_BN, mask_BN), sorted_sum(x_BND, weight_BN, mask_BN))


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", ""])
def test_without_a_compiler_torch_sorts(compiler, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native, "library", native.library.__wrapped__)
    assert native.library(torch.float32) is None
    x_BND, mask_BN = random_sets([4, 3], 3)
    assert module.sorted_sum(x_BND, torch.ones(2, 4), mask_BN).isfinite().all()
