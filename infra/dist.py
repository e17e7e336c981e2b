"""The few collective operations that training needs; with one process they do nothing.

The global batch is what losses and batch statistics see: codes of all workers are gathered with their
gradient, every worker computes the same loss on them, and DDP's mean over workers then gives the exact
gradient of one process with the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """Concatenate along the batch. Every worker computes the same loss, so its own slice of the gradient,
    times the number of workers that DDP will average over, is all that it needs: no communication back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(world())[rank()] * world()


def gather(x: Tensor) -> Tensor:
    """Concatenate every worker's `(b, ...)` into the global `(B, ...)`, in order of rank, with gradient.

    Every worker holds equally many samples. The loss made of the result must be the same on every worker,
    and gradients of parameters must be averaged over workers, as DDP does.
    """
    return x if world() == 1 else _Gather.apply(x)


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def all_sum(x: Tensor) -> Tensor:
    """Return the sum of `x` over the workers, with gradient."""
    return x if world() == 1 else _AllSum.apply(x)


def gather_objects(value: Any) -> list[Any]:
    """Return every worker's `value`, in order of rank."""
    if world() == 1:
        return [value]
    values = [None] * world()
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value: Any) -> Any:
    """Return the value that rank 0 holds."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
