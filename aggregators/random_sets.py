"""Random sets, contexts and global features for checking aggregators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polypool.aggregators.aggregator import Aggregator, Context, Pooled


def random_sets(
    sizes: list[int], dim: int, *, pad: int = 0, seed: int = 0, dtype=torch.float32
) -> tuple[Tensor, Tensor]:
    """Return `(x_BND, mask_BN)` with the given sizes; masked values are large noise."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(sizes) + pad
    x_BND = torch.randn(len(sizes), longest, dim, generator=generator)
    mask_BN = torch.arange(longest) < torch.tensor(sizes)[:, None]
    noise_BND = 1e3 * torch.randn(x_BND.shape, generator=torch.Generator().manual_seed(seed + 1 + pad))
    return x_BND.where(mask_BN[..., None], noise_BND).to(dtype), mask_BN


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of an aggregator.

    Attributes:
        x_BND: the sets' elements.
        mask_BN: True for real elements.
        context: for an aggregator that needs one, or None.
        global_feature_BS: global features, or None.
    """

    x_BND: Tensor
    mask_BN: Tensor
    context: Context | None = None
    global_feature_BS: Tensor | None = None

    def pool(self, module: Aggregator, *, seed: int = 0) -> Pooled:
        """Call an aggregator with random seed `seed`, and assert that it does not modify its inputs."""
        given = self._tensors()
        before = {name: x.detach().clone() for name, x in given.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            pooled = module(
                self.x_BND, self.mask_BN, context=self.context, global_feature_BS=self.global_feature_BS
            )
        changed = [
            name for name, x in given.items() if not torch.equal(x.nan_to_num(), before[name].nan_to_num())
        ]
        assert not changed, (
            f"forward changes {' and '.join(changed)} in place; change a copy, such as mask_BN.clone()"
        )
        return pooled

    def _tensors(self) -> dict[str, Tensor]:
        context = self.context or (None, None)
        tensors = {
            "the mask": self.mask_BN,
            "the elements": self.x_BND,
            "the context": context[0],
            "the context's mask": context[1],
            "the global feature": self.global_feature_BS,
        }
        return {name: x for name, x in tensors.items() if x is not None}

    def floats(self) -> tuple[Tensor, ...]:
        """Return the tensors that can receive gradients."""
        context = None if self.context is None else self.context.x
        return tuple(part for part in (self.x_BND, context, self.global_feature_BS) if part is not None)

    def with_floats(self, *parts: Tensor) -> Inputs:
        """Replace the tensors, in the order of `floats`."""
        rest = iter(parts)
        x_BND = next(rest)
        context = None if self.context is None else self.context._replace(x=next(rest))
        return replace(self, x_BND=x_BND, context=context, global_feature_BS=next(rest, None))

    def map(self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Inputs:
        """Apply a function to the elements and their mask, and to a context that is a set."""
        x_BND, mask_BN = change(self.x_BND, self.mask_BN)
        context = self.context
        if context is not None and context.mask is not None:
            x, mask = change(context.x, context.mask)
            context = context._replace(x=x, mask=mask)
        return replace(self, x_BND=x_BND, mask_BN=mask_BN, context=context)

    def fill(self, value: float) -> Inputs:
        """Replace the masked values."""
        return self.map(lambda x, mask: (x.where(mask[..., None], x.new_full((), value)), mask))

    def cast(self, dtype: torch.dtype) -> Inputs:
        """Change the precision."""
        return self.with_floats(*(part.to(dtype) for part in self.floats()))

    def alone(self, i: int) -> Inputs:
        """Return sample i without batch mates and without padding."""
        sample = self.samples(slice(i, i + 1))
        return sample.map(lambda x, mask: (x[:, : mask.sum()], mask[:, : mask.sum()]))

    def samples(self, rows: slice) -> Inputs:
        """Return some of the samples."""
        some = self.with_floats(*(part[rows] for part in self.floats()))
        context = some.context
        if context is not None and context.mask is not None:
            context = context._replace(mask=context.mask[rows])
        return replace(some, mask_BN=self.mask_BN[rows], context=context)


def random_inputs(sizes: list[int], *, module: Aggregator, dim: int, global_feature: bool = False) -> Inputs:
    """Return random sets of the given sizes with an aggregator's other inputs; context sets have reversed sizes."""
    x_BND, mask_BN = random_sets(sizes, dim)
    context = None
    if module.context == "set":
        context = Context(*random_sets(sizes[::-1], dim, seed=10))
    elif module.context == "vector":
        context = Context(torch.randn(len(sizes), dim, generator=torch.Generator().manual_seed(10)))
    generator = torch.Generator().manual_seed(20)
    global_BS = torch.randn(len(sizes), module.width or dim, generator=generator) if global_feature else None
    return Inputs(x_BND=x_BND, mask_BN=mask_BN, context=context, global_feature_BS=global_BS)
