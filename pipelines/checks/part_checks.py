"""The base of the checks of a kind of parts, and assertions that several kinds share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from polypool.infra.checks import Check
from polypool.infra.registry import Registry

REGISTER = (
    "make what is learned a nn.Parameter in __init__, constants buffers (register_buffer) and several modules "
    "a nn.ModuleList; read every parameter in every batch: training on several workers refuses others"
)
"""Advice where `check_parameters` fails."""


class Marked(NamedTuple):
    """A method that is a check, with the fields of `Check`; `applies` tells to which parts it applies."""

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
    """The checks of one part: the methods marked by `check`, in the order of their definition.

    Attributes:
        registry: builds the part.
    """

    registry: ClassVar[Registry]

    def __init__(self, spec: str) -> None:
        self.spec = spec

    @cached_property
    def part(self) -> Any:
        """A new part."""
        torch.manual_seed(0)
        return self.registry.build(self.spec)

    def checks(self) -> list[Check]:
        """Return the checks that apply to the part."""
        return [
            Check(
                run=partial(marked.method, self), what=marked.what, advice=marked.advice, vital=marked.vital
            )
            for marked in vars(type(self)).values()
            if isinstance(marked, Marked) and marked.applies(self)
        ]


def check_parameters(module: nn.Module) -> None:
    """Assert, after a backward pass, that all parameters have finite gradients.

    Attributes that require a gradient and are not registered, also in lists and dicts, are an error: they are not
    trained, saved or moved to a device.
    """
    wanted = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    loose = list(_unregistered(module))
    assert not loose, (
        f"{', '.join(loose)} would learn, and is no parameter of the module: nothing trains, saves or moves it"
    )
    missing = [name for name, grad in wanted.items() if grad is None]
    assert not missing, f"no gradient reaches {', '.join(missing)}"
    spoilt = [name for name, grad in wanted.items() if grad is not None and not grad.isfinite().all()]
    assert not spoilt, f"the gradient of {', '.join(spoilt)} is not finite"


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Yield the names of leaf tensors that require a gradient and are not parameters of the module."""
    own = {id(p) for p in module.parameters()}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for path, x in _tensors(value, f"{prefix}.{name}".lstrip(".")):
                if x.requires_grad and x.is_leaf and id(x) not in own:
                    yield path


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a value is or contains, with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", p) for name, p in value.named_parameters())
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _tensors(item, f"{path}[{place}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{path}[{key!r}]")


def check_terms(terms: dict[str, Tensor]) -> str:
    """Assert that an objective's terms are finite scalars, with a `loss` that has a gradient; return it as text."""
    assert "loss" in terms, f"there is no `loss` among {', '.join(terms) or 'nothing'}"
    for name, x in terms.items():
        assert isinstance(x, Tensor), f"`{name}` is {type(x).__name__}, expected a tensor"
        assert x.shape == (), f"`{name}` has shape {tuple(x.shape)}, expected a scalar"
        assert x.isfinite(), f"`{name}` is {x.item()}"
    assert terms["loss"].requires_grad, "`loss` has no gradient"
    return f"loss {terms['loss'].item():.4g}"


def through_json(assets: dict[str, Any]) -> dict[str, Any]:
    """Return assets as a checkpoint restores them; assert that another round trip changes nothing."""
    text = json.dumps(assets)
    again = json.loads(text)
    assert json.dumps(again) == text, "the assets come back from JSON as something else"
    return again
