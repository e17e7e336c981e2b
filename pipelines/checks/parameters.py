"""Whether all that a module would learn is trained: registered as a parameter, and reached by a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

ADVICE = (
    "make what is learned a nn.Parameter in __init__, constants buffers (register_buffer) and several modules "
    "a nn.ModuleList; read every parameter in every batch: training on several workers refuses others"
)


def check_parameters(module: nn.Module) -> None:
    """Assert, after a backward pass, that gradients are finite and have reached all that requires one.

    Tensors and modules that are attributes, or lie in lists and dicts of them, without being registered, count too:
    no optimiser has them, no checkpoint, and they stay on the CPU.
    """
    wanted = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    loose = list(_unregistered(module))
    assert not loose, (
        f"{', '.join(loose)} would learn, and is no parameter of the module: nothing trains, saves or moves it"
    )
    missing = [name for name, grad in wanted.items() if grad is None]
    assert not missing, f"no gradient reaches {', '.join(missing)}"
    spoilt = [name for name, grad in wanted.items() if not grad.isfinite().all()]
    assert not spoilt, f"the gradient of {', '.join(spoilt)} is not finite"


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Yield the names of leaf tensors that require a gradient and are no parameters of the module."""
    own = {id(p) for p in module.parameters()}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for path, x in _tensors(value, f"{prefix}.{name}".lstrip(".")):
                if x.requires_grad and x.is_leaf and id(x) not in own:
                    yield path


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a value is or holds, with where they are."""
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
