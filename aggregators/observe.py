"""What goes through a model's aggregators while it works: a few sets of each, for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from aggregators.base import Aggregator
from infra.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One set that an aggregator was given, without pads, and what it made of it.

    Attributes:
        inputs: what the aggregator was called with, as a batch of one: `x_1ND`, `mask_1N` and maybe more.
        embedding: the result, `(D,)` or `(K, D)`.
    """

    inputs: tuple[Tensor, ...]
    embedding: Tensor

    @property
    def size(self) -> int:
        """How many elements the set has."""
        return self.inputs[1].shape[1]


@dataclass
class Watched:
    """An aggregator of a model and what it was seen to do.

    Attributes:
        name: of the module in the model, such as `visual.aggregator`.
        aggregator: the module.
        seen: a fair sample of all sets that it was given.
        count: how many they were.
    """

    name: str
    aggregator: Aggregator
    seen: list[Seen] = field(default_factory=list)
    count: int = 0

    @torch.no_grad()
    def weights(self, *seen: Seen) -> Tensor | None:
        """Return the weights of S sets whose inputs have equal shapes, `(S, K, N, D)`, float32; see `weights_over`.

        K is 1 where weights are not over embeddings, and D where channels have none of their own. None: it has no weights.

        Raises:
            InputError: they are not as `weights_over` says, or not finite.
            Exception: whatever an aggregator's `weights` raises.
        """
        inputs = [torch.cat(parts) for parts in zip(*(it.inputs for it in seen), strict=True)]
        weight = self.aggregator.weights(*inputs)
        return None if weight is None else _checked(weight.float().cpu(), self.aggregator, inputs[0])


def _checked(weight: Tensor, aggregator: Aggregator, x_SND: Tensor) -> Tensor:
    """Return weights as `(S, K, N, D)`, where they are what the aggregator says they are."""
    over, (sets, size, width) = aggregator.weights_over, x_SND.shape
    if over not in ("elements", "ranks", "embeddings"):
        raise InputError(f"weights_over must be 'elements', 'ranks' or 'embeddings', not {over!r}")
    embeddings = over == "embeddings"
    expected = (
        [(sets, aggregator.num_embeddings, size)] if embeddings else [(sets, size), (sets, size, width)]
    )
    if tuple(weight.shape) not in expected:
        raise InputError(
            f"{sets} sets of {size} elements of width {width} have weights of shape {tuple(weight.shape)}, expected "
            f"{' or '.join(map(str, expected))} for weights_over = {over!r}"
        )
    if not weight.isfinite().all():
        raise InputError(f"sets of {size} elements have weights that are not finite")
    return weight[..., None] if embeddings else weight.reshape(sets, 1, size, -1)


@contextmanager
def observe(model: nn.Module, *, most: int = 64) -> Iterator[list[Watched]]:
    """Watch the aggregators of a model, in the order of its modules; one inside another is not watched by itself.

    What the model computes stays as it is. Where sets are aggregated with every context, a pair of each set with one of
    the contexts is seen.

    Args:
        model: what is watched until the block ends.
        most: sets of each aggregator to keep.
    """
    found = [
        Watched(name, module) for name, module in model.named_modules() if isinstance(module, Aggregator)
    ]
    outer = [it for it in found if not any(it.name.startswith(f"{other.name}.") for other in found)]
    undo = [_watch(it, _Sample(it, most)) for it in outer]
    try:
        yield outer
    finally:
        for stop in undo:
            stop()


class _Sample:
    """Keeps each of the sets that come with equal chance (Vitter's algorithm R)."""

    def __init__(self, watched: Watched, most: int) -> None:
        self.watched, self.most, self.random, self.busy = watched, most, Random(0), False

    def add(
        self, inputs: tuple[Any, ...], embedding_BD: Tensor, pick: Callable[[int], tuple[int, ...]]
    ) -> None:
        """Take note of a call: set b of the inputs and, of the contexts, one that `pick(b)` names beside it."""
        watched = self.watched
        for b in range(len(inputs[0])):
            at = watched.count if watched.count < self.most else self.random.randrange(watched.count + 1)
            watched.count += 1
            if at < self.most:
                watched.seen[at : at + 1] = [_one(inputs, embedding_BD, pick(b))]


def _one(inputs: tuple[Any, ...], embedding: Tensor, at: tuple[int, ...]) -> Seen:
    """Copy one set, its context and its code; `at` are its place and, where there are two axes, the context's."""
    parts = _set(*inputs[:2], at[0])
    if len(inputs) == 4:
        parts += _set(*inputs[2:], at[-1])
    elif len(inputs) > 2 and inputs[2] is not None:
        parts += (inputs[2][at[0]].detach().clone()[None],)
    return Seen(inputs=parts, embedding=embedding[at].detach().clone())


def _set(x_BND: Tensor, mask_BN: Tensor, b: int) -> tuple[Tensor, Tensor]:
    mask_N = mask_BN[b]
    return x_BND[b, mask_N].detach().clone()[None], mask_N[mask_N][None]


def _watch(watched: Watched, sample: _Sample) -> Callable[[], None]:
    """Have the ways to call an aggregator noted, and return what ends it; a call inside a call is not noted."""
    aggregator = watched.aggregator

    def note(method: Callable, *, contexts: bool = False, residual: bool = False) -> Callable:
        def call(*inputs: Any) -> Any:
            if sample.busy:
                return method(*inputs)
            sample.busy = True
            try:
                result = method(*inputs)
            finally:
                sample.busy = False
            embedding = result[0] if residual else result
            sample.add(
                inputs, embedding, (lambda b: (b, b % len(inputs[2]))) if contexts else (lambda b: (b,))
            )
            return result

        return call

    aggregator.forward = note(aggregator.forward)
    aggregator.with_residual = note(aggregator.with_residual, residual=True)
    aggregator.of_all = note(aggregator.of_all, contexts=True)

    def stop() -> None:
        del aggregator.forward, aggregator.with_residual, aggregator.of_all

    return stop
