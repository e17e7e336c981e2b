"""Published weights as they are."""

from __future__ import annotations

from torch import nn

from polypool.encoders.adaptations import Adaptation
from polypool.infra.registry import ADAPTATIONS


@ADAPTATIONS.register("frozen")
class Frozen(Adaptation):
    """Train nothing of the published weights, only what comes after them.

    Args:
        sides: `visual`, `text` or both.
    """

    def change(self, model: nn.Module) -> None:
        """Add nothing."""

    def is_added(self, name: str) -> bool:
        return False

    def merge(self, model: nn.Module) -> None:
        """Leave the weights, which did not change."""
