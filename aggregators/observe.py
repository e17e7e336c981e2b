"""Forward hooks that record a few sets of each aggregator of a model, for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from polypool.aggregators.aggregator import Aggregator, Pooled
from polypool.infra.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The output of an aggregator for one set; the weights exclude padding.

    Attributes:
        size: number of elements N.
        vectors: `(D,)` or `(K, D)`.
        weights: of this set, in the shape of `Aggregator.weights_over` without B: `(N,)`, `(N, D)` or `(K, N)`; or
            None.
    """

    size: int
    vectors: Tensor
    weights: Tensor | None = None


@dataclass
class Watched:
    """An aggregator of a model, and a sample of its outputs.

    Attributes:
        name: module name in the model, such as `visual.aggregator`.
        aggregator: the module.
        seen: a uniform sample of all sets that it pooled; with all pairs, one pair per set.
        count: number of sets that it pooled.
        wrong: why its weights cannot be recorded; empty if they can.
    """

    name: str
    aggregator: Aggregator
    seen: list[Seen] = field(default_factory=list)
    count: int = 0
    wrong: str = ""

    def weights(self, *seen: Seen) -> Tensor | None:
        """Return the weights of S sets of one size, `(S, K, N, D)`, float32 on the CPU; None without weights.

        K is 1 unless `weights_over` is "embeddings"; D is 1 unless weights are per channel.

        Raises:
            InputError: weights that contradict `weights_over` or are not finite.
        """
        if self.wrong:
            raise InputError(self.wrong)
        weights = [it.weights for it in seen if it.weights is not None]
        if len(weights) < len(seen):
            return None
        weight = torch.stack(weights).float().cpu()
        if not weight.isfinite().all():
            raise InputError(f"sets of {seen[0].size} elements have weights that are not finite")
        if self.aggregator.weights_over == "embeddings":
            return weight[..., None]
        return weight.reshape(len(seen), 1, seen[0].size, -1)


@contextmanager
def observe(model: nn.Module, *, most: int = 64) -> Iterator[list[Watched]]:
    """Record outputs of the model's aggregators, in module order, within a `with` block.

    Nested aggregators are not recorded separately. Forward hooks see every call and change no result. With all pairs,
    each set is recorded with one context.

    Args:
        model: the model to observe.
        most: number of sets to keep per aggregator.
    """
    every = [
        Watched(name, module) for name, module in model.named_modules() if isinstance(module, Aggregator)
    ]
    outer = [it for it in every if not any(it.name.startswith(f"{other.name}.") for other in every)]
    handles = [it.aggregator.register_forward_hook(_recorder(it, most), with_kwargs=True) for it in outer]
    try:
        yield outer
    finally:
        for handle in handles:
            handle.remove()


def _recorder(watched: Watched, most: int) -> Callable[..., None]:
    """Return a hook that samples sets uniformly (Vitter's algorithm R)."""
    random = Random(0)

    def hook(
        module: nn.Module, sets: tuple[Tensor, Tensor], optional: dict[str, Any], pooled: Pooled
    ) -> None:
        if not isinstance(pooled, Pooled):
            return  # the aggregator's own checks report this error
        x_BND, mask_BN = sets
        context = optional.get("context")
        contexts = len(context.x) if context is not None and context.all_pairs else 0
        watched.wrong = watched.wrong or _wrong(pooled.weights, watched.aggregator, x_BND, contexts)
        for b in range(len(x_BND)):
            at = watched.count if watched.count < most else random.randrange(watched.count + 1)
            watched.count += 1
            if at < most:
                place = (b, b % contexts) if contexts else (b,)
                seen = Seen(
                    size=int(mask_BN[b].sum()),
                    vectors=pooled.vectors[place].detach().clone(),
                    weights=None if watched.wrong else _without_pads(pooled.weights, watched, mask_BN, place),
                )
                watched.seen[at : at + 1] = [seen]

    return hook


def _without_pads(
    weights: Tensor | None, watched: Watched, mask_BN: Tensor, place: tuple[int, ...]
) -> Tensor | None:
    """Copy the weights of one set; ranks start at column 0, wherever the real elements are."""
    if weights is None:
        return None
    mask_N, weight = mask_BN[place[0]], weights[place].detach()
    match watched.aggregator.weights_over:
        case "ranks":
            return weight[: mask_N.sum()].clone()
        case "elements":
            return weight[mask_N]
        case _:
            return weight[:, mask_N]


def _wrong(weights: Tensor | None, aggregator: Aggregator, x_BND: Tensor, contexts: int) -> str:
    """Return the contradiction between the weights and the aggregator's declaration; empty if none."""
    over, (sets, size, width) = aggregator.weights_over, x_BND.shape
    if weights is None:
        return ""
    first = (sets, contexts) if contexts else (sets,)
    k = aggregator.num_embeddings or weights.shape[-2]
    expected = [(k, size)] if over == "embeddings" else [(size,), (size, width)]
    expected = [(*first, *shape) for shape in expected]
    if tuple(weights.shape) in expected:
        return ""
    return (
        f"{sets} sets of {size} elements of width {width} have weights of shape {tuple(weights.shape)}, expected "
        f"{' or '.join(map(str, expected))} for weights_over = {over!r}"
    )
