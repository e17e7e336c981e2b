"""Base classes of checks, and assertions shared by several kinds of parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from polypool.infra.checks import Check
from polypool.infra.registry import Registry

REGISTER = (
    "make what is learned a nn.Parameter in __init__, constants buffers (register_buffer) and several modules "
    "a nn.ModuleList; read every parameter in every batch: training on several workers refuses others"
)
"""Advice where `check_parameters` fails."""


class Marked(NamedTuple):
    """A check method with the fields of `Check`, and the condition under which it applies to a part."""

    method: Callable[[Any], str | None]
    what: str
    advice: str
    vital: bool
    applies: Callable[[Any], bool]


def check(
    what: str, advice: str, *, vital: bool = False, applies: Callable[[Any], bool] = lambda _: True
) -> Callable[[Callable[[Any], str | None]], Marked]:
    """Mark a method of `PartChecks` as a check."""
    return lambda method: Marked(method, what, advice, vital, applies)


class PartChecks:
    """The checks of one part: its methods marked by `check`, base classes first.

    Attributes:
        registry: registry of the part's kind.
    """

    registry: Registry

    def __init__(self, spec: str) -> None:
        self.spec = spec

    def checks(self) -> list[Check]:
        """Return the checks that apply to the part."""
        return [
            Check(
                run=partial(marked.method, self), what=marked.what, advice=marked.advice, vital=marked.vital
            )
            for base in reversed(type(self).__mro__)
            for marked in vars(base).values()
            if isinstance(marked, Marked) and marked.applies(self)
        ]


class BuiltChecks(PartChecks):
    """The checks of a part that can be built without a run."""

    @cached_property
    def part(self) -> Any:
        """A new part."""
        torch.manual_seed(0)
        return self.registry.build(self.spec)

    @check(
        "it is built",
        "derive from the base of its kind, and take every parameter by keyword, with a default",
        vital=True,
    )
    def _built(self) -> str:
        return type(self.part).__name__


def check_parameters(module: nn.Module, *, when: str = "") -> None:
    """Assert, after a backward pass, that all parameters have finite gradients; `when` ends the messages.

    Unregistered attributes that require a gradient, such as a list of layers, are an error: they are not trained, saved
    or moved to a device.
    """
    wanted = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    if loose := ", ".join(_unregistered(module)):
        raise AssertionError(f"{loose} requires a gradient but is not a registered parameter or module")
    missing = [name for name, grad in wanted.items() if grad is None]
    assert not missing, f"no gradient reaches {', '.join(missing)}{when}"
    spoilt = [name for name, grad in wanted.items() if grad is not None and not grad.isfinite().all()]
    assert not spoilt, f"the gradient of {', '.join(spoilt)} is not finite{when}"


def _unregistered(module: nn.Module) -> list[str]:
    """Return the names of attributes with leaf tensors that require a gradient and are not parameters."""
    registered, found = {id(p) for p in module.parameters()}, []
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            for leaf in tree_leaves(value):
                tensors = leaf.parameters() if isinstance(leaf, nn.Module) else [leaf]
                for x in tensors:
                    if isinstance(x, Tensor) and x.requires_grad and x.is_leaf and id(x) not in registered:
                        found.append(f"{prefix}.{name}".lstrip("."))
    return [*dict.fromkeys(found)]


def check_tensor(name: str, x: object, *shape: int) -> None:
    """Assert that a value is a finite tensor of a shape; -1 is any length."""
    assert isinstance(x, Tensor), f"{name} is {type(x).__name__}, expected a tensor"
    expected = tuple(own if size == -1 else size for own, size in zip_longest(x.shape, shape))
    assert x.shape == expected, f"{name} has shape {tuple(x.shape)}, expected {shape}"
    assert x.isfinite().all(), f"{name} is {x.item()}" if x.numel() == 1 else f"{name} is not finite"


def check_mask(name: str, mask_BN: Tensor, samples: int) -> None:
    """Assert that a mask is bool and marks at least one element of each sample."""
    assert mask_BN.dtype == torch.bool, (
        f"{name} is {mask_BN.dtype}, expected torch.bool, True for real elements"
    )
    assert len(mask_BN) == samples, f"{name} has {len(mask_BN)} rows for {samples} samples"
    assert mask_BN.any(dim=-1).all(), f"{name} marks no element of some sample"


def check_terms(terms: dict[str, Tensor]) -> str:
    """Assert that terms are finite scalars, among them a `loss` with a gradient; return it as text."""
    assert "loss" in terms, f"`loss` is missing in {', '.join(terms) or 'nothing'}"
    for name, x in terms.items():
        check_tensor(f"`{name}`", x)
    assert terms["loss"].requires_grad, "`loss` has no gradient"
    return f"loss {terms['loss'].item():.4g}"
