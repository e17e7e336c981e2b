"""Gradients of a batch in chunks, so that a large batch fits a small device."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polypool.infra.batches import Batch
from polypool.infra.compute.dist import average_gradients
from polypool.infra.errors import InputError
from polypool.tasks.abilities import Chunked
from polypool.tasks.adapter import TaskAdapter


def chunked_gradients(
    adapter: Chunked,
    model: nn.Module,
    batch: Batch,
    *,
    epoch: float,
    chunk: int,
    precision: AbstractContextManager,
) -> dict[str, Tensor]:
    """Add the gradient of a batch to the parameters', averaged over workers; return the terms of `TaskAdapter.loss`.

    Args:
        adapter: of the task.
        model: not wrapped in DDP, which would average after every pass.
        batch: this worker's share.
        epoch: epochs trained so far.
        chunk: samples of this worker that pass at once.
        precision: in which to compute.
    """
    terms: dict[str, Tensor] = {}
    passes = adapter.passes(model, batch, epoch=epoch, chunk=chunk)
    while True:
        with precision:
            each = next(passes, None)
        if each is None:
            break
        each.loss.backward()
        for name, value in each.terms.items():
            terms[name] = terms.get(name, 0.0) + value.detach()
    average_gradients(p for p in model.parameters() if p.requires_grad)
    return terms


def check_chunks(adapter: TaskAdapter, model: nn.Module, *, chunk: int) -> None:
    """Refuse chunks for a task without them, or where they change the gradient.

    Args:
        adapter: of the task.
        model: that will be trained; it is left in training mode.
        chunk: samples that pass at once; 0 for all of them.

    Raises:
        InputError: the task has no `passes`, or the model normalises by statistics of the batch.
    """
    if not chunk:
        return
    if not isinstance(adapter, Chunked):
        raise InputError(
            f"--optim.chunk {chunk}: {type(adapter).__name__} has no `passes` that cut its batches into chunks (see "
            "polypool.tasks.abilities.Chunked); leave it out"
        )
    model.train()
    names = [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm) and module.training
    ]
    if names:
        raise InputError(
            f"--optim.chunk {chunk}: {', '.join(names)} normalise by statistics of the batch, and would by those of a "
            "chunk; leave it out, or choose parts without batch normalisation, such as --visual grid"
        )
