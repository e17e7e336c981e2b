"""A batch that passes a model in chunks, with the gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from infra.compute.dropout import Draws, current_draws
from infra.compute.replay import Replay
from infra.data import Batch
from infra.errors import InputError
from tasks.abilities import Pass
from tasks.models.base import RetrievalModel


def cached_passes(model: RetrievalModel, batch: Batch, *, epoch: float, chunk: int) -> Iterator[Pass]:
    """Encode a batch in chunks, and yield passes whose gradients add up to that of the whole batch.

    GradCache (Gao et al., "Scaling deep contrastive learning batch size under memory limited setup", RepL4NLP 2021):
    every chunk is encoded without a graph; the loss of the global batch is formed of all that came out, which gives the
    gradient of that; then every chunk is encoded again, with a graph, and what came out takes its part of that gradient
    on. So memory holds the graph of one chunk, and of the scores; encoding costs a third pass more.

    What chunks draw at random is what the whole batch draws, where it is drawn by the sample, and in any case the same
    both times. Statistics of a batch would be those of a chunk: no part of the model may have them.

    Args:
        model: not wrapped; its gradients are still to be averaged over workers.
        batch: this worker's share.
        epoch: epochs trained so far.
        chunk: images or videos that are encoded at once; of captions as many as belong to them.
    """
    device = batch["item"].device
    samples, draws = len(batch["item"]), current_draws()
    sides = []
    for encode, prefix in ((model.encode_visual, "visual"), (model.encode_text, "text")):
        side = _Side(encode, _chunks(batch, prefix, samples=samples, chunk=chunk), draws, device)
        if draws is not None:
            draws.count = side.count
        sides.append(side)
    torch.clear_autocast_cache()  # which holds weights in half precision that have no graph
    scored = model.score_encoded(batch, *(side.cached() for side in sides))
    terms = model.terms(scored, epoch=epoch)
    yield Pass(loss=terms["loss"], terms=terms)
    del scored, terms
    for side in sides:
        yield from side.passes()


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """A part of a batch.

    Attributes:
        batch: what is encoded.
        first, samples: place of its first sample in the batch, and how many it has.
    """

    batch: Batch
    first: int
    samples: int


def _chunks(batch: Batch, prefix: str, *, samples: int, chunk: int) -> list[_Chunk]:
    """Cut what one side of a model reads, which has a multiple of the samples for rows."""
    own = {name: x for name, x in batch.items() if name.startswith(prefix)}
    found = []
    for first in range(0, samples, chunk):
        last = min(first + chunk, samples)
        part = {name: x[len(x) * first // samples : len(x) * last // samples] for name, x in own.items()}
        found.append(_Chunk(batch=part, first=first, samples=last - first))
    return found


class _Side:
    """What one half of a model makes of a batch, chunk by chunk; making it encodes every chunk without a graph."""

    def __init__(
        self,
        encode: Callable[[Batch], Any],
        chunks: Sequence[_Chunk],
        draws: Draws | None,
        device: torch.device,
    ) -> None:
        self._encode, self._chunks = encode, chunks
        self._replays = [
            Replay(
                replace(draws, first=draws.first + chunk.first, samples=chunk.samples) if draws else None,
                device,
            )
            for chunk in chunks
        ]
        self.count = 0
        self._parts: list[list[Any]] = []
        for chunk, replay in zip(chunks, self._replays, strict=True):
            with replay.first() as counted, torch.no_grad():
                leaves, self._spec = _flattened(encode(chunk.batch), encode)
            self._parts.append(leaves)
            self.count = counted.count if counted else 0
        self._leaves = [_together(leaves) for leaves in zip(*self._parts, strict=True)]
        self._shapes = [[_shape(leaf) for leaf in leaves] for leaves in self._parts]
        self._parts.clear()

    def cached(self) -> Any:
        """Return what comes of the whole batch, cut off from what it was made by, to take a gradient."""
        for leaf in self._leaves:
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.requires_grad_()
        return tree_unflatten(self._leaves, self._spec)

    def passes(self) -> Iterator[Pass]:
        """Encode chunk by chunk with a graph, and yield what hands the gradient on; it is there by now."""
        starts = [0] * len(self._leaves)
        for chunk, replay, shapes in zip(self._chunks, self._replays, self._shapes, strict=True):
            with replay.again():
                leaves, _ = _flattened(self._encode(chunk.batch), self._encode)
            total = None
            for number, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
                whole, start = self._leaves[number], starts[number]
                if shape is None:
                    continue
                starts[number] = start + shape[0]
                if whole.grad is None or not leaf.requires_grad:
                    continue
                own = whole.grad[start : start + shape[0]][
                    tuple(slice(size) for size in ((None, *shape[1:])))
                ]
                product = (leaf * own).sum()
                total = product if total is None else total + product
            if total is None:  # nothing here is trained
                return
            yield Pass(loss=total)


def _flattened(encoded: Any, encode: Callable[[Batch], Any]) -> tuple[list[Any], TreeSpec]:
    """Return the tensors of what was encoded, and what they are in."""
    leaves, spec = tree_flatten(encoded)
    if not any(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
        raise InputError(
            f"{encode.__qualname__} returned {type(encoded).__name__}, of which --optim.chunk keeps nothing: it takes "
            "tensors, and tuples, named tuples, lists and dicts of them"
        )
    return leaves, spec


def _shape(leaf: Any) -> torch.Size | None:
    return leaf.shape if isinstance(leaf, Tensor) and leaf.ndim else None


def _together(leaves: Sequence[Any]) -> Any:
    """Concatenate chunks' tensors; sets of fewer elements are filled up with zeros. What is no tensor is one."""
    if _shape(leaves[0]) is None:
        return leaves[0]
    widest = [max(sizes) for sizes in zip(*(leaf.shape[1:] for leaf in leaves), strict=True)]
    return torch.cat([_filled(leaf, widest) for leaf in leaves])


def _filled(leaf: Tensor, sizes: Sequence[int]) -> Tensor:
    more = [size - own for size, own in zip(sizes, leaf.shape[1:], strict=True)]
    if not any(more):
        return leaf
    return F.pad(leaf, [number for missing in reversed(more) for number in (0, missing)])
