"""Collective operations of training; no-ops in a single process.

Losses and batch statistics use the global batch: embeddings of all workers are gathered with gradients, every worker
computes the same loss on them, and DDP's mean over workers equals the gradient of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def rank() -> int:
    """Return the rank of this worker; 0 if training is not distributed."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Return the number of workers; 1 if training is not distributed."""
    return dist.get_world_size() if dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """All-gather along the batch axis with a local backward pass.

    Every worker computes the same loss, so its slice of the gradient, times the number of workers (over which DDP
    averages), suffices: the backward pass needs no communication.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(world())[rank()] * world()


def gather(x: Tensor) -> Tensor:
    """Concatenate every worker's `(b, ...)` to the global `(B, ...)` in order of rank, with gradient.

    All workers must have equally many samples and compute the same loss of the result, and parameter gradients must be
    averaged over workers, as DDP does.
    """
    return x if world() == 1 else _Gather.apply(x)


@torch.no_grad()
def gather_uneven(x: Tensor) -> Tensor:
    """Concatenate every worker's `(b, ...)` in order of rank; b may differ and be 0; without gradient."""
    if world() == 1:
        return x
    sizes = gather_objects(len(x))
    padded = x.new_zeros((max(sizes), *x.shape[1:]))
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


@torch.no_grad()
def broadcast_state(module: nn.Module) -> None:
    """Broadcast the parameters and buffers of rank 0."""
    if world() > 1:
        for x in module.state_dict().values():
            dist.broadcast(x, src=0)


class _Sum(torch.autograd.Function):
    """All-reduce by sum, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


def all_sum(x: Tensor) -> Tensor:
    """Return the sum of `x` over the workers, with gradient."""
    return x if world() == 1 else _Sum.apply(x)


def gather_shared(x: Tensor) -> Tensor:
    """Concatenate like `gather`, for samples that every worker uses differently.

    An example: captions that each worker scores against its own images. Their gradient is the sum over the workers;
    results must reach the loss through `gather`, whose factor cancels DDP's mean.
    """
    if world() == 1:
        return x
    parts = [torch.zeros_like(x) for _ in range(world())]
    parts[rank()] = x
    return all_sum(torch.cat(parts))


_BUCKET = 2**23
"""Bucket size of an all-reduce, in numbers."""


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over the workers, as DDP does.

    A gradient that is missing on some workers counts as zero there; one that is missing on all stays None.

    Args:
        parameters: the same on every worker, in the same order.
    """
    if world() == 1:
        return
    all_parameters = list(parameters)
    buckets: dict[torch.dtype, list[Tensor]] = {}
    had = torch.tensor([p.grad is not None for p in all_parameters], device=all_parameters[0].device).int()
    dist.all_reduce(had)
    for parameter, workers in zip(all_parameters, had.tolist(), strict=True):
        if not workers:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket = buckets.setdefault(parameter.dtype, [])
        bucket.append(parameter.grad)
        if sum(gradient.numel() for gradient in bucket) >= _BUCKET:
            _average(buckets.pop(parameter.dtype))
    for bucket in buckets.values():
        _average(bucket)


def _average(tensors: list[Tensor]) -> None:
    flat = torch.cat([x.flatten() for x in tensors])
    dist.all_reduce(flat)
    flat /= world()
    for x, mean in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(mean.view_as(x))


def gather_objects(value: Any) -> list[Any]:
    """Return every worker's `value`, in order of rank."""
    if world() == 1:
        return [value]
    values = [None] * world()
    dist.all_gather_object(values, value)
    return values
