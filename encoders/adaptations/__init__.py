"""Adaptations: what is trained of encoders with published weights, where it is not all of them.

Checkpoints of an adapted encoder leave its published weights out and keep their digest, so that a run takes kilobytes;
`merge` makes an encoder without any adaptation of it, as `export` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from polypool.encoders.encoder import Encoder
from polypool.infra.errors import InputError, unknown

DIGEST = "published_sha256"
"""Buffer of an adapted encoder: the digest of the weights that it started from; zeros before they are loaded."""
SIDES = ("visual", "text")


class Adaptation(ABC):
    """A way to train a model with published weights.

    Args:
        sides: whose encoders it is for: `visual`, `text` or both; others are trained whole.
    """

    def __init__(self, *, sides: str = "visual text") -> None:
        self.sides = tuple(sides.split())
        for side in self.sides or ("",):
            if side not in SIDES:
                raise unknown("side of an adaptation:", side, SIDES)

    @abstractmethod
    def change(self, model: nn.Module) -> None:
        """Add weights to a model whose own weights are frozen already."""

    @abstractmethod
    def is_added(self, name: str) -> bool:
        """Whether a weight of this name was added by `change`."""

    @abstractmethod
    def merge(self, model: nn.Module) -> None:
        """Bring what was trained into the model's own weights, and undo `change`."""


def adapt(encoder: Encoder, adaptation: Adaptation) -> None:
    """Freeze the published weights of an encoder, and add those of an adaptation."""
    model = encoder.get_submodule(encoder.published)
    encoder.register_buffer(DIGEST, _digest(model))
    model.requires_grad_(False)
    adaptation.change(model)
    encoder.adaptation = adaptation


def merge(model: nn.Module) -> None:
    """Merge the adaptations of all encoders of a model, which then needs no published weights any more."""
    for encoder, adaptation, _ in adapted(model):
        part = encoder.get_submodule(encoder.published)
        adaptation.merge(part)
        part.requires_grad_(True)
        encoder.adaptation = None
        delattr(encoder, DIGEST)


def left_out(model: nn.Module) -> set[str]:
    """Return the names of the weights that a checkpoint leaves out, as they are published."""
    return {
        f"{prefix}{encoder.published}.{name}"
        for encoder, adaptation, prefix in adapted(model)
        for name in encoder.get_submodule(encoder.published).state_dict()
        if not adaptation.is_added(name)
    }


def check_published(model: nn.Module, weights: dict[str, Tensor], *, where: object) -> None:
    """Compare the published weights of a model with those that a checkpoint was trained on.

    Raises:
        InputError: they are others.
    """
    for encoder, _, prefix in adapted(model):
        digest = weights.get(f"{prefix}{DIGEST}")
        if digest is not None and not torch.equal(digest.cpu(), getattr(encoder, DIGEST).cpu()):
            raise InputError(
                f"{where}: was trained on other weights of {getattr(encoder, 'name', encoder.published)} than are "
                "found here; give back the ones of then, or train the run again"
            )


def adapted(model: nn.Module) -> Iterator[tuple[Encoder, Adaptation, str]]:
    """Yield the encoders of a model that have an adaptation, each with it and the prefix of its weights' names."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, Encoder) and module.adaptation is not None:
            yield module, module.adaptation, f"{path}." if path else ""


def _digest(model: nn.Module) -> Tensor:
    from polypool.encoders.backbones.hub import weights_digest

    if any(weight.is_meta for weight in model.parameters()):
        return torch.zeros(32, dtype=torch.uint8)
    return torch.tensor([*bytes.fromhex(weights_digest(model))], dtype=torch.uint8)
