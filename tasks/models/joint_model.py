"""The models of several tasks, of which some parts are one and the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from polypool.infra.batches import Batch
from polypool.infra.errors import InputError


class JointModel(nn.Module):
    """One model for each task; shared modules are trained by all.

    Args:
        members: a model for each task, by its name.
        share: paths of modules, such as `text` or `visual.aggregator`. Of those that have one there, each takes that of
            the first; a model of other parts keeps its own.

    Raises:
        InputError: fewer than two models have such a module, or they are not alike.
    """

    def __init__(self, members: Mapping[str, nn.Module], share: Sequence[str]) -> None:
        super().__init__()
        for path in share:
            _share(members, path)
        self.members = nn.ModuleDict(members)

    def forward(self, batch: Batch, *, member: str, **beside: Any) -> Any:
        return self.members[member](batch, **beside)


def _share(members: Mapping[str, nn.Module], path: str) -> None:
    parent, _, last = path.rpartition(".")
    having = {name: model for name, model in members.items() if _has(model, path)}
    if len(having) < 2:
        parts = ", ".join(sorted(_common(members))) or "nothing: no two models have a part in common"
        raise InputError(
            f"{path!r} is to be shared, and {' and '.join(having) or 'no task'} alone has it; leave it out of `share`, "
            f"or choose among {parts}"
        )
    (first, model), *others = having.items()
    shared = model.get_submodule(path)
    for name, other in others:
        if differing := _difference(shared, other.get_submodule(path)):
            raise InputError(
                f"{path!r} is to be shared, and that of {first} and of {name} are not alike: {differing}; give both "
                "the same settings, or leave it out of `share`"
            )
        setattr(other.get_submodule(parent), last, shared)


def _has(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True


def _common(members: Mapping[str, nn.Module]) -> set[str]:
    """Return paths of two parts at most that two models have."""
    paths = [{p for p, _ in model.named_modules() if p and p.count(".") < 2} for model in members.values()]
    return {path for own in paths for path in own if sum(path in of for of in paths) > 1}


def _difference(one: nn.Module, other: nn.Module) -> str:
    """Say in what two modules differ; empty where they are alike."""
    if type(one) is not type(other):
        return f"one is {type(one).__name__}, the other {type(other).__name__}"
    shapes = [{name: tuple(x.shape) for name, x in each.state_dict().items()} for each in (one, other)]
    for name in sorted({*shapes[0]} | {*shapes[1]}):
        first, second = (of.get(name, "not there") for of in shapes)
        if first != second:
            return f"{name} is {first} and {second}"
    return ""
