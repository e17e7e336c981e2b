"""An aggregator compared with its formula, one set at a time, and the plain parts of such formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Context
from polypool.aggregators.random_sets import random_inputs
from polypool.infra.registry import AGGREGATORS

Weights = dict[str, Tensor]


def trained(spec: str, dim: int) -> Aggregator:
    """Build an aggregator in float64 and move its weights, since many start at a special place."""
    torch.manual_seed(0)
    module = AGGREGATORS.build(spec, dim).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
    return module


def hold_to_formula(
    spec: str | Aggregator, explicit: Callable[..., Tensor], *, dim: int = 6, global_feature: bool = False
) -> None:
    """Assert that values and gradients are those of `explicit` for sets with holes.

    It is called with x_ND, the weights and, where there are some, a context and a global feature.
    """
    module = trained(spec, dim) if isinstance(spec, str) else spec
    inputs = random_inputs([5, 1, 2, 8], module=module, dim=dim, global_feature=global_feature)
    inputs = inputs.cast(torch.float64)
    inputs.mask_BN[3, [0, 4]] = False
    given = [part.requires_grad_() for part in inputs.floats()] + list(module.parameters())
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    out = inputs.pool(module).vectors
    sets = [[x_ND[mask_N], weights] for x_ND, mask_N in zip(inputs.x_BND, inputs.mask_BN, strict=True)]
    for of_sets in (of_each(inputs.context), inputs.global_feature_BS):
        for given_set, part in zip(sets, () if of_sets is None else of_sets, strict=False):
            given_set.append(part)
    expected = torch.stack([explicit(*given_set) for given_set in sets])
    torch.testing.assert_close(out, expected, atol=1e-9, rtol=1e-9)
    cotangent = torch.randn_like(out)
    ours, theirs = (
        torch.autograd.grad(x, given, cotangent, allow_unused=True, materialize_grads=True)
        for x in (out, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-7)


def of_each(context: Context | None) -> list[Tensor]:
    """Return each context, if any, without pads: a vector `(C,)` or a set `(M, C)`."""
    if context is None:
        return []
    if context.mask is None:
        return list(context.x)
    return [x_MC[mask_M] for x_MC, mask_M in zip(context.x, context.mask, strict=True)]


def unit(x_D: Tensor) -> Tensor:
    """Return a vector of length one in the same direction."""
    return x_D / sum(x_D**2).sqrt()


def mixed(shares: list[Tensor], vectors: Iterable[Tensor]) -> Tensor:
    """Return the sum of vectors, each weighed by its share."""
    return sum(share * vector for share, vector in zip(shares, vectors, strict=True))


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """Return the shares of numbers, or of vectors channel by channel."""
    total = sum(score.exp() for score in scores)
    return [score.exp() / total for score in scores]


def linear(p: Weights, name: str, x_D: Tensor) -> Tensor:
    """Return a linear map of a vector, with its bias where it has one."""
    y_D = p[f"{name}.weight"] @ x_D
    return y_D + p[f"{name}.bias"] if f"{name}.bias" in p else y_D


def norm(p: Weights, name: str, x_D: Tensor, eps: float = 1e-5) -> Tensor:
    """Return the layer norm of a vector."""
    centred_D = x_D - sum(x_D) / len(x_D)
    deviation = (sum(centred_D**2) / len(x_D) + eps).sqrt()
    return centred_D / deviation * p[f"{name}.weight"] + p[f"{name}.bias"]


def gelu(x_D: Tensor) -> Tensor:
    """Return x times the chance that a normal number is below it."""
    return x_D * (1 + torch.erf(x_D / math.sqrt(2))) / 2


def heads_of(
    query_D: Tensor, x_ND: list[Tensor], p: Weights, name: str, heads: int, scale: float | None = None
) -> Tensor:
    """Return what one query gets of a set, head by head, its keys and values mapped one element at a time."""
    width, parts = len(query_D) // heads, []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        keys = [linear(p, f"{name}key", x_D)[own] for x_D in x_ND]
        values = [linear(p, f"{name}value", x_D)[own] for x_D in x_ND]
        scores = [query_D[own] @ key * (1 / math.sqrt(width) if scale is None else scale) for key in keys]
        parts.append(mixed(softmax(scores), values))
    return torch.cat(parts)


def attention_of(query_D: Tensor, x_ND: list[Tensor], p: Weights, name: str, heads: int) -> Tensor:
    """Return `Attention` of one query."""
    return linear(p, f"{name}.out", heads_of(linear(p, f"{name}.query", query_D), x_ND, p, f"{name}.", heads))


def mlp_of(x_D: Tensor, p: Weights, name: str) -> Tensor:
    """Return a transformer's MLP of one vector."""
    return linear(p, f"{name}.2", gelu(linear(p, f"{name}.0", x_D)))
