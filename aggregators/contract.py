"""The contract that every aggregator keeps, as assertions that name what is broken; plug-ins can run it too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from aggregators.base import Aggregator
from infra.checks import Check


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


@dataclass(frozen=True)
class Inputs:
    """What an aggregator is called with: `module(*inputs)`.

    Attributes:
        sets: `(x_BND, mask_BN)` of the elements and, for an aggregator that needs one, of the context.
        global_feature: the vectors `(B, S)` of an encoder that makes some, or nothing.
    """

    sets: tuple[tuple[Tensor, Tensor], ...]
    global_feature: tuple[Tensor, ...] = ()

    def __iter__(self) -> Iterator[Tensor]:
        yield from (part for one_set in self.sets for part in one_set)
        yield from self.global_feature

    def map(self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Inputs:
        """Change the elements and the context in the same way."""
        return replace(self, sets=tuple(change(*one_set) for one_set in self.sets))

    def fill(self, value: float) -> Inputs:
        """Put another value under the masks."""
        return self.map(lambda x, mask: (x.where(mask[..., None], x.new_full((), value)), mask))

    def cast(self, dtype: torch.dtype) -> Inputs:
        """Change the precision."""
        changed = self.map(lambda x, mask: (x.to(dtype), mask))
        return replace(changed, global_feature=tuple(x.to(dtype) for x in self.global_feature))

    def alone(self, i: int) -> Inputs:
        """Return sample i without batch mates and without padding."""
        changed = self.map(lambda x, mask: (x[i : i + 1, : mask[i].sum()], mask[i : i + 1, : mask[i].sum()]))
        return replace(changed, global_feature=tuple(x[i : i + 1] for x in self.global_feature))


Draw = Callable[[list[int]], Inputs]


def random_inputs(sizes: list[int], *, module: Aggregator, dim: int, global_feature: bool = False) -> Inputs:
    """Return random sets of the given sizes with what else the aggregator takes; contexts have other sizes."""
    sets = [random_sets(sizes, dim)]
    if module.needs_context:
        sets.append(random_sets(sizes[::-1], dim, seed=10))
    generator = torch.Generator().manual_seed(20)
    given = (torch.randn(len(sizes), module.width or dim, generator=generator),) if global_feature else ()
    return Inputs(tuple(sets), given)


def check_aggregator(module: Aggregator, dim: int) -> None:
    """Assert the whole contract for one aggregator, with context and global_feature where it takes them."""
    for check in aggregator_checks(module, dim):
        check.run()


def aggregator_checks(module: Aggregator, dim: int) -> list[Check]:
    """Return the contract's promises for one aggregator, one by one."""
    module = copy.deepcopy(module).eval()
    kinds = [False, True] if module.takes_global_feature else [False]
    if module.takes_global_feature and module.width not in (None, dim):
        kinds = [True]  # nothing can stand in for a global feature of another width
    draws = {
        global_feature: partial(random_inputs, module=module, dim=dim, global_feature=global_feature)
        for global_feature in kinds
    }
    return [
        Check(
            what=what + (", with a global feature" if global_feature else ""),
            run=partial(promise, module, draw, module.width or dim),
            advice=advice,
            vital=promise is _shape,
        )
        for global_feature, draw in draws.items()
        for promise, (what, advice) in PROMISES.items()
    ]


SIZES = [5, 1, 9, 5]


def _shape(module: Aggregator, draw: Draw, width: int) -> None:
    out = module(*draw(SIZES))
    expected = (
        (len(SIZES), width) if module.num_embeddings == 1 else (len(SIZES), module.num_embeddings, width)
    )
    assert out.shape == expected, f"the result has shape {tuple(out.shape)}, expected {expected}"
    assert out.isfinite().all(), "the result is not finite"


def _residual(module: Aggregator, draw: Draw, width: int) -> None:
    out, residual_BKD = module.with_residual(*draw(SIZES))
    torch.testing.assert_close(out, module(*draw(SIZES)), msg="with_residual gives another result")
    if residual_BKD is not None:
        expected = (len(SIZES), module.num_embeddings, width)
        assert residual_BKD.shape == expected, (
            f"the residual has shape {tuple(residual_BKD.shape)}, not {expected}"
        )


def _weights(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    weight = module.weights(*inputs)
    if weight is None:
        return
    (x_BND, mask_BN), shape = inputs.sets[0], tuple(weight.shape)
    if module.weights_over == "embeddings":
        assert shape == (len(mask_BN), module.num_embeddings, mask_BN.shape[1]), (
            f"the weights have shape {shape}"
        )
        weight = weight.transpose(1, 2)
    assert shape in (mask_BN.shape, x_BND.shape) or module.weights_over == "embeddings", (
        f"the weights have shape {shape}, expected {tuple(mask_BN.shape)} or {tuple(x_BND.shape)}"
    )
    assert weight.isfinite().all(), "the weights are not finite"
    if module.weights_over != "ranks":
        assert (weight[~mask_BN] == 0).all(), "an element that is not there has a weight"


def _padding(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    wide = inputs.map(
        lambda x, mask: (
            torch.nn.functional.pad(x, (0, 0, 0, 4), value=7.0),
            torch.nn.functional.pad(mask, (0, 4)),
        )
    )
    expected = module(*inputs)
    for changed, what in (
        (wide, "more padding changes"),
        (inputs.fill(-123.0), "values under the mask change"),
        (inputs.fill(float("nan")), "NaN under the mask changes"),
    ):
        torch.testing.assert_close(module(*changed), expected, msg=f"{what} the result")


def _batch_mates(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    together = module(*inputs)
    for i in range(len(SIZES)):
        alone = module(*inputs.alone(i))
        torch.testing.assert_close(alone[0], together[i], msg="batch mates change the result")


def _single_element(module: Aggregator, draw: Draw, width: int) -> None:
    assert module(*draw([1])).isfinite().all(), "a set of one element gives no finite result"


def _order(module: Aggregator, draw: Draw, width: int) -> None:
    if not module.symmetric:
        return
    inputs = draw([9, 9])
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    turned = inputs.map(lambda x, mask: (x[:, order], mask))
    torch.testing.assert_close(module(*turned), module(*inputs), msg="the order matters")


def _holes(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw([9, 9, 9])
    kept_BN = torch.tensor(
        [[1, 1, 0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 0, 1, 0, 1, 0, 1]]
    )
    kept_BN = kept_BN.bool()
    holed = inputs.map(lambda x, mask: (x, mask & kept_BN)).fill(float("nan"))
    closed = inputs.map(lambda x, mask: (x[kept_BN].view(3, 5, -1), mask[kept_BN].view(3, 5)))
    torch.testing.assert_close(module(*holed), module(*closed), msg="a hole in the mask changes the result")


def _low_precision(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES).fill(0.0)
    expected = module(*inputs)
    for dtype, tolerance in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
        out = copy.deepcopy(module).to(dtype)(*inputs.cast(dtype))
        assert out.dtype == dtype, f"{dtype} sets give a {out.dtype} result"
        torch.testing.assert_close(
            out.float(), expected, atol=tolerance, rtol=tolerance, msg=f"{dtype} is far off"
        )


def _gradients(module: Aggregator, draw: Draw, width: int) -> None:
    module = copy.deepcopy(module).double()
    inputs = draw([3, 1, 4]).cast(torch.float64)
    given = tuple(part.requires_grad_(part.is_floating_point()) for part in inputs)
    assert torch.autograd.gradcheck(module, given), "the gradient is wrong"
    module(*given).square().sum().backward()
    for x_BND, mask_BN in inputs.sets:
        assert (x_BND.grad[~mask_BN] == 0).all(), "a gradient flows into the padding"
    missing = [name for name, p in module.named_parameters() if p.grad is None]
    assert not missing, f"no gradient reaches {missing}"
    module.zero_grad()
    module(*inputs.fill(float("nan"))).square().sum().backward()
    spoilt = [name for name, p in module.named_parameters() if not p.grad.isfinite().all()]
    assert not spoilt, f"NaN under the mask spoils the gradient of {spoilt}"


def _state(module: Aggregator, draw: Draw, width: int) -> None:
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(module.state_dict(), strict=True)
    inputs = draw(SIZES)
    assert torch.equal(other(*inputs), module(*inputs)), "the state dict does not hold the whole module"


PROMISES = {
    _shape: (
        "a vector of each set, or num_embeddings of them, all finite",
        "return (B, D), or (B, K, D) with num_embeddings = K; where the width changes, set self.width",
    ),
    _residual: (
        "with_residual gives the same result",
        "return from it what forward returns, and a residual (B, num_embeddings, D) or None",
    ),
    _weights: (
        "weights are as weights_over says",
        'return (B, N) or (B, N, D), or (B, num_embeddings, N) with weights_over = "embeddings", or None',
    ),
    _padding: (
        "neither padding nor what lies under the mask counts",
        "fill what lies under the mask before elements meet: x_BND.masked_fill(~mask_BN[..., None], 0.0), or -inf "
        "before a maximum",
    ),
    _batch_mates: (
        "batch mates do not count",
        "compute each set from its own elements alone, and nothing from the longest set's size",
    ),
    _single_element: (
        "a set of one element gives finite numbers",
        "divide by the number of real elements, and by no deviation that may be 0",
    ),
    _order: (
        "the order of elements does not count, unless symmetric = False",
        "set symmetric = False where it is meant to",
    ),
    _holes: (
        "holes in the mask count no more than padding",
        "number the elements by mask_BN.cumsum(1), not by their columns",
    ),
    _low_precision: (
        "float16 and bfloat16 give what float32 gives",
        "make new tensors in the dtype of x_BND, and use torch.finfo(dtype).min instead of a large number",
    ),
    _gradients: (
        "gradients are right, reach every weight, and none flows into the padding",
        "mask before a linear map and not only after it, use every weight, and detach nothing that is learnt",
    ),
    _state: (
        "the state dict holds the whole module",
        "keep what is learnt in parameters and what is fixed in buffers",
    ),
}
"""What each assertion holds an aggregator to, and what to do where it is broken."""
