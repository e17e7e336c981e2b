"""Compare an aggregator with its formula, one set at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator
from polypool.aggregators.random_sets import random_inputs
from polypool.infra.registry import AGGREGATORS

Weights = dict[str, Tensor]


def trained(spec: str, dim: int) -> Aggregator:
    """Build an aggregator in float64 and add noise to its weights, because many start at special values."""
    torch.manual_seed(0)
    module = AGGREGATORS.build(spec, dim).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
    return module


def hold_to_formula(spec: str | Aggregator, explicit: Callable[..., Tensor], *, dim: int = 6) -> None:
    """Assert that values and gradients equal those of `explicit(x_ND, weights)`, also for a mask with gaps."""
    module = trained(spec, dim) if isinstance(spec, str) else spec
    inputs = random_inputs([5, 1, 2, 8], module=module, dim=dim).cast(torch.float64)
    inputs.mask_BN[3, [0, 4]] = False
    given = [inputs.x_BND.requires_grad_(), *module.parameters()]
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    out = inputs.pool(module).vectors
    sets = zip(inputs.x_BND, inputs.mask_BN, strict=True)
    expected = torch.stack([explicit(x_ND[mask_N], weights) for x_ND, mask_N in sets])
    torch.testing.assert_close(out, expected, atol=1e-9, rtol=1e-9)
    cotangent = torch.randn_like(out)
    ours, theirs = (
        torch.autograd.grad(x, given, cotangent, allow_unused=True, materialize_grads=True)
        for x in (out, expected)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-7)
