"""Gradient caching: a batch is processed in chunks, with the gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from polypool.infra.batches import Batch
from polypool.infra.compute.dropout import Draws, Replay, current_draws
from polypool.infra.errors import InputError
from polypool.tasks.abilities import PartialLoss
from polypool.tasks.models.retrieval_model import RetrievalModel


def cached_passes(model: RetrievalModel, batch: Batch, *, epoch: float, chunk: int) -> Iterator[PartialLoss]:
    """Encode a batch in chunks, and yield passes whose gradients add up to the whole batch's.

    GradCache (Gao et al., "Scaling deep contrastive learning batch size under memory limited setup", RepL4NLP 2021):
    every chunk is encoded without a graph; the loss of the global batch gives the gradient of the encodings; then every
    chunk is encoded again with a graph, and backpropagates its part of that gradient. Memory holds the graph of one
    chunk and of the scores; encoding takes a third more time.

    Random numbers equal those in the whole batch if drawn per sample, and are equal in both passes in any case. Batch
    statistics would cover only a chunk: no part of the model may use them.

    Args:
        model: not wrapped; its gradients are not yet averaged over workers.
        batch: this worker's share.
        epoch: epochs trained so far, as a fraction.
        chunk: images or videos per forward pass, with their captions.
    """
    draws = current_draws()
    sides = []
    for encode, prefix in ((model.encode_visual, "visual"), (model.encode_text, "text")):
        side = _Side(encode, batch, prefix, chunk=chunk, draws=draws)
        if draws is not None:
            draws.count = side.count
        sides.append(side)
    torch.clear_autocast_cache()  # it holds half-precision weights without a graph
    scored = model.score_encoded(batch, *(side.cached() for side in sides))
    terms = model.terms(scored, epoch=epoch)
    yield PartialLoss(loss=terms["loss"], terms=terms)
    del scored, terms
    for side in sides:
        yield from side.passes()


class _Side:
    """The encodings of one side of a batch, chunk by chunk, computed without a graph.

    Args:
        encode: the model's `encode_visual` or `encode_text`.
        batch: inputs of both sides.
        prefix: of the names of this side's inputs, whose rows are a multiple of the samples.
        chunk: samples per forward pass.
        draws: random state of the step; None if torch draws.
    """

    def __init__(
        self, encode: Callable[[Batch], Any], batch: Batch, prefix: str, *, chunk: int, draws: Draws | None
    ) -> None:
        samples, own = len(batch["item"]), {name: x for name, x in batch.items() if name.startswith(prefix)}
        self._encode, self.count = encode, 0
        self._chunks: list[tuple[Batch, Replay, list[torch.Size | None]]] = []
        parts = []
        for first in range(0, samples, chunk):
            last = min(first + chunk, samples)
            part = {name: x[len(x) * first // samples : len(x) * last // samples] for name, x in own.items()}
            drawn = replace(draws, first=draws.first + first, samples=last - first) if draws else None
            replay = Replay(drawn, batch["item"].device)
            with replay.first() as counted, torch.no_grad():
                leaves, self._spec = self._encoded(part)
            self._chunks.append((part, replay, [_shape(leaf) for leaf in leaves]))
            self.count = counted.count if counted else 0
            parts.append(leaves)
        self._leaves = [_concatenated(leaves) for leaves in zip(*parts, strict=True)]

    def cached(self) -> Any:
        """Return the encodings of the whole batch, detached, as leaves that collect a gradient."""
        for leaf in self._leaves:
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.requires_grad_()
        return tree_unflatten(self._leaves, self._spec)

    def passes(self) -> Iterator[PartialLoss]:
        """Encode chunk by chunk with a graph, and yield passes with the gradient of `cached`, which must exist."""
        starts = [0] * len(self._leaves)
        for part, replay, shapes in self._chunks:
            with replay.again():
                leaves, _ = self._encoded(part)
            products = []
            for number, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
                if shape is None:
                    continue
                start, whole = starts[number], self._leaves[number]
                starts[number] = start + shape[0]
                if whole.grad is not None and leaf.requires_grad:
                    sizes = (slice(size) for size in (None, *shape[1:]))
                    products.append((leaf * whole.grad[start : starts[number]][tuple(sizes)]).sum())
            if not products:  # this side is frozen
                return
            yield PartialLoss(loss=sum(products[1:], products[0]))

    def _encoded(self, part: Batch) -> tuple[list[Any], Any]:
        """Return the tensors of the encodings of a chunk, and their structure."""
        encoded = self._encode(part)
        leaves, spec = tree_flatten(encoded)
        if not any(_shape(leaf) for leaf in leaves):
            name = getattr(self._encode, "__qualname__", self._encode)
            raise InputError(
                f"{name} returned {type(encoded).__name__} without tensors; --optim.chunk supports tensors, and "
                "tuples, named tuples, lists and dicts of them"
            )
        return leaves, spec


def _shape(leaf: Any) -> torch.Size | None:
    return leaf.shape if isinstance(leaf, Tensor) and leaf.ndim else None


def _concatenated(leaves: Sequence[Any]) -> Any:
    """Concatenate the chunks' tensors, zero-padded to a common size; for other values return the first."""
    if _shape(leaves[0]) is None:
        return leaves[0]
    widest = [max(sizes) for sizes in zip(*(leaf.shape[1:] for leaf in leaves), strict=True)]
    pads = ([size - own for size, own in zip(widest, leaf.shape[1:], strict=True)] for leaf in leaves)
    padded = (
        F.pad(leaf, [number for pad in reversed(more) for number in (0, pad)]) if any(more) else leaf
        for leaf, more in zip(leaves, pads, strict=True)
    )
    return torch.cat([*padded])
