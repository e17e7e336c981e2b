"""Adaptations: partial training of encoders with published weights.

Checkpoints of an adapted encoder omit its published weights and store their digest, so they are small. `merge`, which
`export` uses, folds an adaptation into the encoder's weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from polypool.encoders.encoder import Encoder
from polypool.infra.errors import InputError, unknown

DIGEST = "published_sha256"
"""Buffer of an adapted encoder: SHA-256 of its published weights; zeros on the device `meta`."""
SIDES = ("visual", "text")


class Adaptation(ABC):
    """A way to train a model with published weights.

    Args:
        sides: encoders to adapt: `visual`, `text` or both; others are trained in full.
    """

    def __init__(self, *, sides: str = "visual text") -> None:
        self.sides = tuple(sides.split())
        for side in self.sides or ("",):
            if side not in SIDES:
                raise unknown("side of an adaptation:", side, SIDES)

    @abstractmethod
    def change(self, model: nn.Module) -> None:
        """Add trainable weights to a model whose own weights are already frozen."""

    @abstractmethod
    def is_added(self, name: str) -> bool:
        """Whether a weight of this name was added by `change`."""

    @abstractmethod
    def merge(self, model: nn.Module) -> None:
        """Merge the trained weights into the model's own, and remove what `change` added."""


def adapt(encoder: Encoder, adaptation: Adaptation) -> None:
    """Freeze the published weights of an encoder and apply an adaptation."""
    model = encoder.get_submodule(encoder.published)
    encoder.register_buffer(DIGEST, _digest(model))
    model.requires_grad_(False)
    adaptation.change(model)
    encoder.adaptation = adaptation


def merge(model: nn.Module) -> None:
    """Merge the adaptations of all encoders of a model, which then no longer depends on the published weights."""
    for encoder, adaptation, _ in adapted(model):
        part = encoder.get_submodule(encoder.published)
        adaptation.merge(part)
        part.requires_grad_(True)
        encoder.adaptation = None
        delattr(encoder, DIGEST)


def left_out(model: nn.Module) -> set[str]:
    """Return the names of the published weights, which a checkpoint omits."""
    return {
        f"{prefix}{encoder.published}.{name}"
        for encoder, adaptation, prefix in adapted(model)
        for name in encoder.get_submodule(encoder.published).state_dict()
        if not adaptation.is_added(name)
    }


def check_published(model: nn.Module, weights: dict[str, Tensor], *, where: object) -> None:
    """Compare the digest of a model's published weights with the one in a checkpoint.

    Raises:
        InputError: the digests differ.
    """
    for encoder, _, prefix in adapted(model):
        digest = weights.get(f"{prefix}{DIGEST}")
        if digest is not None and not torch.equal(digest.cpu(), getattr(encoder, DIGEST).cpu()):
            raise InputError(
                f"{where}: was trained on other weights of {getattr(encoder, 'name', encoder.published)} than are "
                "found here; give back the ones of then, or train the run again"
            )


def adapted(model: nn.Module) -> Iterator[tuple[Encoder, Adaptation, str]]:
    """Yield each adapted encoder with its adaptation and the prefix of its weights' names."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, Encoder) and module.adaptation is not None:
            yield module, module.adaptation, f"{path}." if path else ""


def _digest(model: nn.Module) -> Tensor:
    from polypool.encoders.backbones.hub import weights_digest

    if any(weight.is_meta for weight in model.parameters()):
        return torch.zeros(32, dtype=torch.uint8)
    return torch.tensor([*bytes.fromhex(weights_digest(model))], dtype=torch.uint8)
