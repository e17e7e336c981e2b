"""The contract that every aggregator keeps, as assertions that name what is broken; plug-ins can run it too."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from aggregators.base import Aggregator


def random_sets(
    sizes: list[int], dim: int, *, pad: int = 0, seed: int = 0, dtype=torch.float32
) -> tuple[Tensor, Tensor]:
    """Return `(x_BND, mask_BN)` with the given sizes; what lies under the mask is large noise."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(sizes) + pad
    x_BND = torch.randn(len(sizes), longest, dim, generator=generator)
    mask_BN = torch.arange(longest) < torch.tensor(sizes)[:, None]
    noise_BND = 1e3 * torch.randn(x_BND.shape, generator=torch.Generator().manual_seed(seed + 1 + pad))
    return x_BND.where(mask_BN[..., None], noise_BND).to(dtype), mask_BN


def check_aggregator(module: Aggregator, dim: int) -> None:
    """Assert the whole contract for one aggregator without context."""
    module = copy.deepcopy(module).eval()
    for check in (
        _shape,
        _padding,
        _batch_mates,
        _single_element,
        _order,
        _low_precision,
        _gradients,
        _state,
    ):
        check(module, dim)


SIZES = [5, 1, 9, 5]


def _shape(module: Aggregator, dim: int) -> None:
    out = module(*random_sets(SIZES, dim))
    expected = (len(SIZES), dim) if module.set_size == 1 else (len(SIZES), module.set_size, dim)
    assert out.shape == expected, f"the result has shape {tuple(out.shape)}, expected {expected}"
    assert out.isfinite().all(), "the result is not finite"


def _padding(module: Aggregator, dim: int) -> None:
    x_BND, mask_BN = random_sets(SIZES, dim)
    wide_BND, wide_mask_BN = (
        torch.nn.functional.pad(x_BND, (0, 0, 0, 4), value=7.0),
        torch.nn.functional.pad(mask_BN, (0, 4)),
    )
    wild_BND = x_BND.where(mask_BN[..., None], x_BND.new_full((), -123.0))
    nan_BND = x_BND.where(mask_BN[..., None], x_BND.new_full((), float("nan")))
    expected = module(x_BND, mask_BN)
    torch.testing.assert_close(
        module(wide_BND, wide_mask_BN), expected, msg="more padding changes the result"
    )
    torch.testing.assert_close(
        module(wild_BND, mask_BN), expected, msg="values under the mask change the result"
    )
    torch.testing.assert_close(
        module(nan_BND, mask_BN), expected, msg="NaN under the mask changes the result"
    )


def _batch_mates(module: Aggregator, dim: int) -> None:
    x_BND, mask_BN = random_sets(SIZES, dim)
    together = module(x_BND, mask_BN)
    for i, size in enumerate(SIZES):
        alone = module(x_BND[i : i + 1, :size], mask_BN[i : i + 1, :size])
        torch.testing.assert_close(alone[0], together[i], msg="batch mates change the result")


def _single_element(module: Aggregator, dim: int) -> None:
    assert module(*random_sets([1], dim)).isfinite().all(), "a set of one element gives no finite result"


def _order(module: Aggregator, dim: int) -> None:
    if not module.symmetric:
        return
    x_BND, mask_BN = random_sets([9, 9], dim)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        module(x_BND[:, order], mask_BN), module(x_BND, mask_BN), msg="the order matters"
    )


def _low_precision(module: Aggregator, dim: int) -> None:
    x_BND, mask_BN = random_sets(SIZES, dim)
    expected = module(x_BND, mask_BN)
    for dtype, tolerance in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
        x = x_BND.where(mask_BN[..., None], x_BND.new_zeros(())).to(dtype)
        out = copy.deepcopy(module).to(dtype)(x, mask_BN)
        assert out.dtype == dtype, f"{dtype} sets give a {out.dtype} result"
        torch.testing.assert_close(
            out.float(), expected, atol=tolerance, rtol=tolerance, msg=f"{dtype} is far off"
        )


def _gradients(module: Aggregator, dim: int) -> None:
    module = copy.deepcopy(module).double()
    x_BND, mask_BN = random_sets([3, 1, 4], dim, dtype=torch.float64)
    x_BND.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x, mask_BN), (x_BND,)), "the gradient is wrong"
    module(x_BND, mask_BN).square().sum().backward()
    assert (x_BND.grad[~mask_BN] == 0).all(), "a gradient flows into the padding"
    missing = [name for name, p in module.named_parameters() if p.grad is None]
    assert not missing, f"no gradient reaches {missing}"


def _state(module: Aggregator, dim: int) -> None:
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(module.state_dict(), strict=True)
    sets = random_sets(SIZES, dim)
    assert torch.equal(other(*sets), module(*sets)), "the state dict does not hold the whole module"
