"""The contract of aggregators as assertions that name the violated rule; plug-ins can run it, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Context, Pooled
from polypool.aggregators.random_sets import Inputs, random_inputs
from polypool.infra.checks import Check
from polypool.infra.errors import InputError

Draw = Callable[[list[int]], Inputs]


def check_aggregator(module: Aggregator, dim: int) -> None:
    """Assert the whole contract for one aggregator, with a context and a global feature if it takes them."""
    for check in aggregator_checks(module, dim):
        check.run()


def aggregator_checks(module: Aggregator, dim: int) -> list[Check]:
    """Return the checks of one aggregator: all in evaluation mode, then the `TRAINING` ones in training mode."""
    modes = copy.deepcopy(module).eval(), copy.deepcopy(module).train()
    kinds = [False, True] if module.takes_global_feature else [False]
    if module.takes_global_feature and module.width not in (None, dim):
        kinds = [True]  # a global feature of another width has no default
    draws = {
        global_feature: partial(random_inputs, module=module, dim=dim, global_feature=global_feature)
        for global_feature in kinds
    }
    return [
        Check(
            what=what
            + (", with a global feature" if global_feature else "")
            + (", in training mode" if mode.training else ""),
            run=partial(assertion, mode, draw, module.width or dim),
            advice=advice,
            vital=assertion is _shape,
        )
        for mode in modes
        for global_feature, draw in draws.items()
        for assertion, (what, advice) in CONTRACT.items()
        if not mode.training or assertion in TRAINING
    ]


SIZES = [5, 1, 9, 5]
MANY = 32  # more vectors than any random set gives


def _shape(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    vectors, k = inputs.pool(module).vectors, module.num_embeddings
    expected = (len(SIZES), width) if k == 1 else (len(SIZES), k or vectors.shape[1], width)
    assert vectors.shape == expected, f"the vectors have shape {tuple(vectors.shape)}, expected {expected}"
    assert vectors.isfinite().all(), "the vectors are not finite"
    assert module.makes in ("vectors", "distribution"), f"makes is {module.makes!r}"
    assert module.makes == "vectors" or k == 2, f"a distribution has num_embeddings = 2, not {k}"
    if k is None:
        real_B = vectors.any(dim=-1).any(dim=1)
        assert real_B.all(), (
            f"sets of {inputs.mask_BN.sum(dim=1)[~real_B].tolist()} elements have only zero vectors"
        )


def _vectors(module: Aggregator, inputs: Inputs, *, seed: int = 0) -> Tensor:
    """Return vectors in comparable form: sorted and padded where their number depends on the set."""
    vectors = inputs.pool(module, seed=seed).vectors
    if module.num_embeddings is not None:
        return vectors
    first_BK = vectors[..., 0].where(vectors.any(dim=-1), float("inf"))
    vectors = vectors.gather(1, first_BK.argsort(dim=1)[..., None].expand_as(vectors))
    return torch.nn.functional.pad(vectors, (0, 0, 0, MANY - vectors.shape[1]))


def _random(module: Aggregator, inputs: Inputs) -> bool:
    """Whether random numbers, such as dropout in training, change the result; they depend on the sets' shape."""
    return module.training and not torch.equal(_vectors(module, inputs), _vectors(module, inputs, seed=1))


def _no_sets(module: Aggregator, draw: Draw, width: int) -> None:
    before = {name: x.clone() for name, x in module.state_dict().items()}
    vectors, k = draw(SIZES).samples(slice(0)).pool(module).vectors, module.num_embeddings
    expected = (0, width) if k == 1 else (0, k or vectors.shape[1], width)
    assert vectors.shape == expected, (
        f"no sets give vectors of shape {tuple(vectors.shape)}, expected {expected}"
    )
    changed = [name for name, x in module.state_dict().items() if not torch.equal(x, before[name])]
    assert not changed, f"no sets change {', '.join(changed)}"


def _hooks(module: Aggregator, draw: Draw, width: int) -> None:
    outputs = []
    handle = module.register_forward_hook(lambda module, inputs, pooled: outputs.append(pooled))
    try:
        pooled = draw(SIZES).pool(module)
    finally:
        handle.remove()
    assert len(outputs) == 1, f"one call runs a forward hook {len(outputs)} times"
    assert outputs[0] is pooled, "a forward hook sees another result than is returned"


def _context(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    if module.context == "none":
        wrong, what = replace(inputs, context=Context(inputs.x_BND, inputs.mask_BN)), "an unexpected context"
    else:
        wrong, what = replace(inputs, context=None), "a missing context"
    try:
        wrong.pool(module)
    except InputError:
        return
    raise AssertionError(f"{what} is not refused")


def _some(contexts: Context, index: slice | list[int]) -> Context:
    return Context(contexts.x[index], None if contexts.mask is None else contexts.mask[index])


def _all_pairs(module: Aggregator, draw: Draw, width: int) -> None:
    if module.context == "none":
        return
    inputs, contexts = draw(SIZES), draw(SIZES).context
    assert contexts is not None
    few = _some(contexts, slice(3))._replace(all_pairs=True)
    together = replace(inputs, context=few).pool(module)
    for g in range(3):
        one = _some(contexts, [g] * len(SIZES))
        for name, part, every in zip(
            Pooled._fields, replace(inputs, context=one).pool(module), together, strict=True
        ):
            assert (part is None) == (every is None), (
                f"{name} is None either for all pairs or for single pairs"
            )
            if part is not None and every is not None:
                expected = (len(SIZES), 3, *part.shape[1:])
                assert every.shape == expected, (
                    f"{name} of all pairs have shape {tuple(every.shape)}, expected {expected}"
                )
                torch.testing.assert_close(
                    every[:, g], part, msg=f"{name} of all pairs differ from single pairs"
                )


def _residual(module: Aggregator, draw: Draw, width: int) -> None:
    residual_BKD = draw(SIZES).pool(module).residual
    expected = (len(SIZES), module.num_embeddings, width)
    assert residual_BKD is None or residual_BKD.shape == expected, (
        f"the residual has shape {tuple(residual_BKD.shape)}, not {expected}"
    )


def _weights(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    pooled = inputs.pool(module)
    vectors, weight = pooled.vectors, pooled.weights
    over, k = module.weights_over, module.num_embeddings or vectors.shape[1]
    if weight is None:
        return
    expected = [tuple(inputs.mask_BN.shape), tuple(inputs.x_BND.shape)]
    if over == "embeddings":
        expected = [(len(SIZES), k, inputs.mask_BN.shape[1])]
    assert over in ("elements", "ranks", "embeddings"), f"weights_over is {over!r}"
    assert weight.shape in expected, f"the weights have shape {tuple(weight.shape)}, expected {expected}"
    assert weight.isfinite().all(), "the weights are not finite"
    weight = weight.transpose(1, 2) if over == "embeddings" else weight
    assert over == "ranks" or (weight[~inputs.mask_BN] == 0).all(), "a padding element has a weight"
    if module.training:  # batch mates may change its statistics
        return
    for i, size in enumerate(SIZES):
        alone = inputs.alone(i).pool(module).weights
        assert alone is not None, "a set alone has no weights"
        alone = alone[0]
        alone = alone.T if over == "embeddings" else alone
        torch.testing.assert_close(weight[i, :size], alone, msg="padding or batch mates change the weights")


def _padding(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    wide = inputs.map(
        lambda x, mask: (
            torch.nn.functional.pad(x, (0, 0, 0, 4), value=7.0),
            torch.nn.functional.pad(mask, (0, 4)),
        )
    )
    expected, random = _vectors(module, inputs), _random(module, inputs)
    for changed, what in (
        *([] if random else [(wide, "more padding changes")]),
        (inputs.fill(-123.0), "values under the mask change"),
        (inputs.fill(float("nan")), "NaN under the mask changes"),
    ):
        torch.testing.assert_close(_vectors(module, changed), expected, msg=f"{what} the result")


def _batch_mates(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES)
    together = _vectors(module, inputs)
    for i in range(len(SIZES)):
        alone = _vectors(module, inputs.alone(i))
        torch.testing.assert_close(alone[0], together[i], msg="batch mates change the result")


def _single_element(module: Aggregator, draw: Draw, width: int) -> None:
    assert _vectors(module, draw([1])).isfinite().all(), "the result for one element is not finite"


def _order(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw([9, 9])
    if not module.symmetric or _random(module, inputs):
        return
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    permuted = inputs.map(lambda x, mask: (x[:, order], mask))
    torch.testing.assert_close(_vectors(module, permuted), _vectors(module, inputs), msg="the order matters")


def _holes(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw([9, 9, 9])
    if _random(module, inputs):
        return
    real_BN = torch.tensor(
        [[1, 1, 0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 0, 1, 0, 1, 0, 1]]
    )
    real_BN = real_BN.bool()
    holed = inputs.map(lambda x, mask: (x, mask & real_BN)).fill(float("nan"))
    closed = inputs.map(lambda x, mask: (x[real_BN].view(3, 5, -1), mask[real_BN].view(3, 5)))
    torch.testing.assert_close(
        _vectors(module, holed), _vectors(module, closed), msg="a hole in the mask changes the result"
    )


def _low_precision(module: Aggregator, draw: Draw, width: int) -> None:
    inputs = draw(SIZES).fill(0.0)
    expected = inputs.pool(module).vectors  # not `_vectors`: its sorting may swap vectors
    for dtype, tolerance in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
        out = inputs.cast(dtype).pool(copy.deepcopy(module).to(dtype)).vectors
        assert out.dtype == dtype, f"{dtype} sets give a {out.dtype} result"
        torch.testing.assert_close(
            out.float(), expected, atol=tolerance, rtol=tolerance, msg=f"{dtype} is far off"
        )


def _gradients(module: Aggregator, draw: Draw, width: int) -> None:
    module = copy.deepcopy(module).double()
    inputs = draw([3, 1, 4]).cast(torch.float64)
    floats = tuple(part.requires_grad_() for part in inputs.floats())
    assert module.training or torch.autograd.gradcheck(
        lambda *parts: inputs.with_floats(*parts).pool(module).vectors, floats, fast_mode=True
    ), "the gradient is wrong"
    _vectors(module, inputs).square().sum().backward()
    masks = (inputs.mask_BN, None if inputs.context is None else inputs.context.mask)
    for part, mask in zip(floats, masks, strict=False):
        assert mask is None or (part.grad is not None and (part.grad[~mask] == 0).all()), (
            "a gradient flows into the padding"
        )
    missing = [name for name, p in module.named_parameters() if p.grad is None]
    assert not missing, f"no gradient reaches {missing}"
    module.zero_grad()
    inputs.fill(float("nan")).pool(module).vectors.square().sum().backward()
    spoilt = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not spoilt, f"NaN under the mask spoils the gradient of {spoilt}"


def _averages(module: Aggregator, draw: Draw, width: int) -> None:
    if not module.averages:
        return
    inputs = draw(SIZES)
    before = inputs.map(lambda x, mask: (3.0 * x.roll(1, dims=-1) - 2.0, mask))
    assert module.num_embeddings == 1, "an average is one vector per set"
    torch.testing.assert_close(
        before.pool(module).vectors,
        3.0 * inputs.pool(module).vectors.roll(1, dims=-1) - 2.0,
        msg="pooling does not commute with an affine map",
    )


def _state(module: Aggregator, draw: Draw, width: int) -> None:
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(module.state_dict(), strict=True)
    inputs = draw(SIZES)
    assert torch.equal(_vectors(other, inputs), _vectors(module, inputs)), (
        "the state dict does not hold the whole module"
    )


CONTRACT = {
    _shape: (
        "finite vectors, num_embeddings per set",
        "return Pooled(vectors) with vectors (B, D), or (B, K, D) with num_embeddings = K, or None for a number that "
        "depends on the set, padded with zero vectors; set self.width if the width changes; a mean and a log-variance "
        'are (B, 2, D) with makes = "distribution" and num_embeddings = 2',
    ),
    _hooks: (
        "forward hooks see every call",
        "override forward, not __call__; figures of weights use hooks",
    ),
    _context: (
        "a missing or an unexpected context is an error",
        'set context = "set" or "vector" if the other modality is needed, as the keyword argument context',
    ),
    _residual: (
        "the residual has a vector per embedding, or is None",
        "return Pooled(vectors, residual=...) of shape (B, num_embeddings, D), or no residual",
    ),
    _no_sets: (
        "an empty batch gives no vectors and changes no statistics",
        "do not override __call__: it skips forward for an empty batch",
    ),
    _padding: (
        "padding and values under the mask change nothing",
        "mask values before elements interact: x_BND.masked_fill(~mask_BN[..., None], 0.0), or -inf "
        "before a maximum",
    ),
    _batch_mates: (
        "batch mates change nothing",
        "compute each set from its own elements only, independent of the longest set's size",
    ),
    _single_element: (
        "a set of one element gives finite numbers",
        "divide by the number of real elements, and add a small number to standard deviations",
    ),
    _order: (
        "the order of elements changes nothing, unless symmetric = False",
        "set symmetric = False if order matters",
    ),
    _holes: (
        "holes in the mask change nothing",
        "number the elements by mask_BN.cumsum(1), not by their columns",
    ),
    _weights: (
        "weights match weights_over, and depend only on their set",
        "return Pooled(vectors, weights=...) of shape (B, N) or (B, N, D), or (B, num_embeddings, N) with "
        'weights_over = "embeddings", or no weights',
    ),
    _all_pairs: (
        "all pairs are equal to each pair alone",
        "with context.all_pairs, return (Q, G, ...) of every set with every context, for example with "
        "pool_all_pairs(self.forward, x_BND, mask_BN, context)",
    ),
    _averages: (
        "with averages = True, pooling commutes with an affine map of the elements",
        "set averages = False if weights depend on the elements or do not sum to 1",
    ),
    _low_precision: (
        "float16 and bfloat16 agree with float32",
        "create tensors in the dtype of x_BND, and use torch.finfo(dtype).min instead of a large number",
    ),
    _gradients: (
        "gradients are right, reach every weight, and none flows into the padding",
        "mask before a linear map, not only after it; use every weight; detach nothing that is learned",
    ),
    _state: (
        "the state dict holds the whole module",
        "make learned tensors parameters and constants buffers",
    ),
}
"""The rule that each assertion checks, and advice if it fails."""

TRAINING = {_shape, _residual, _no_sets, _padding, _single_element, _order, _holes, _weights, _gradients}
"""Checks that also apply in training mode, where batch statistics and random numbers are allowed."""
