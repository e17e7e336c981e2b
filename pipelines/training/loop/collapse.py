"""Detection of collapsed runs, whose model gives all inputs the same output."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from polypool.tasks.abilities import CollapseCheck
from polypool.tasks.adapter import TaskAdapter

FEWEST, FEWEST_AT_END = 10, 3
"""Minimum number of consecutive steps for a warning, within an epoch and at its end."""


class CollapseWatch:
    """Warns once if a run has collapsed: for half an epoch of consecutive steps, or the last quarter of an epoch.

    Args:
        adapter: of the task, which detects collapse.
        epoch_steps: steps of an epoch.
    """

    def __init__(self, adapter: TaskAdapter, *, epoch_steps: int) -> None:
        self._adapter = adapter if isinstance(adapter, CollapseCheck) else None
        self._epoch_steps = epoch_steps
        self._first: Mapping[str, Tensor] = {}
        self._found, self._row = "", 0

    def begin(self, terms: Mapping[str, Tensor]) -> None:
        """Record the metrics of the first step."""
        self._first = {name: value.detach().clone() for name, value in terms.items()}

    def trained(
        self, model: nn.Module, means: Mapping[str, float], *, steps: int, step: int, at_end: bool
    ) -> str:
        """Return the warning after some steps; usually empty.

        Args:
            model: the trained model.
            means: of the metrics of these steps.
            steps: their number since the last call; may be 0.
            step: the last of them.
            at_end: whether an epoch ends here.
        """
        if self._adapter is None:
            return ""
        if steps:
            first = {name: float(value) for name, value in self._first.items()}
            self._found = self._adapter.collapse(model, means, first=first)
            self._row = self._row + steps if self._found else 0
        share, fewest = (4, FEWEST_AT_END) if at_end else (2, FEWEST)
        if not self._found or self._row < max(self._epoch_steps / share, fewest):
            return ""
        self._adapter = None  # one warning a run
        return f"step {step}: {self._found}; try a smaller learning rate (--optim.lr) or a warm-up"
