"""Frozen published weights."""

from __future__ import annotations

from torch import nn

from polypool.encoders.adaptations import Adaptation
from polypool.infra.registry import ADAPTATIONS


@ADAPTATIONS.register("frozen")
class Frozen(Adaptation):
    """Train no published weight, only the layers after them.

    Args:
        sides: `visual`, `text` or both.
    """

    def change(self, model: nn.Module) -> None:
        """Add nothing."""

    def is_added(self, name: str) -> bool:
        return False

    def merge(self, model: nn.Module) -> None:
        """Do nothing: the weights did not change."""
