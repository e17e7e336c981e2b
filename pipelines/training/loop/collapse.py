"""Detection of collapsed runs, whose model tells nothing apart."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from polypool.tasks.abilities import Collapse, Watchful
from polypool.tasks.adapter import Evaluation, TaskAdapter
from polypool.tasks.run import Optim

FEWEST, FEWEST_AT_END = 10, 3
"""Consecutive steps that are required even in short epochs, within one and at its end."""


class CollapseWatch:
    """Warns once that a run has collapsed, from what it logs anyway.

    A collapse is half an epoch of consecutive steps with its symptoms, at an epoch's end the last quarter, or an
    evaluation with them.

    Args:
        adapter: of the task, which knows the symptoms.
        optim: settings, for advice.
        epoch_steps: steps of an epoch.
    """

    def __init__(self, adapter: TaskAdapter, optim: Optim, *, epoch_steps: int) -> None:
        self._adapter = adapter if isinstance(adapter, Watchful) else None
        self._optim, self._epoch_steps = optim, epoch_steps
        self._first: Mapping[str, Tensor] = {}
        self._found: Collapse | None = None
        self._row, self._warned = 0, False

    def begin(self, terms: Mapping[str, Tensor]) -> None:
        """Keep the metrics of the first step."""
        self._first = {name: value.detach().clone() for name, value in terms.items()}

    def trained(
        self, model: nn.Module, means: Mapping[str, float], *, steps: int, step: int, at_end: bool
    ) -> str:
        """Return the warning after some steps, mostly empty.

        Args:
            model: that is trained.
            means: of the metrics of these steps.
            steps: their number since the last call; may be 0.
            step: the last of them.
            at_end: whether an epoch ends here.
        """
        if self._adapter is None or self._warned:
            return ""
        if steps:
            first = {name: float(value) for name, value in self._first.items()}
            epoch = (step - 1) / self._epoch_steps
            self._found = self._adapter.collapse(model, means, first=first, epoch=epoch)
            self._row = self._row + steps if self._found else 0
        share, fewest = (4, FEWEST_AT_END) if at_end else (2, FEWEST)
        enough = self._row >= max(self._epoch_steps / share, fewest)
        return self._warning(self._found, step=step) if enough and self._found else ""

    def evaluated(self, evaluation: Evaluation, *, step: int) -> str:
        """Return the warning after an evaluation, mostly empty."""
        if self._adapter is None or self._warned or not step:
            return ""
        found = self._adapter.collapse_of(evaluation)
        return self._warning(found, step=step) if found else ""

    def _warning(self, found: Collapse, *, step: int) -> str:
        self._warned = True
        optim = self._optim
        advice = [f"a smaller learning rate (--optim.lr {optim.lr / 10:.2g}, now {optim.lr:.2g})"]
        if not optim.warmup_steps:
            advice.append("a warm-up (--optim.warmup-steps 500)")
        symptoms, todo = "; ".join(found.symptoms), ", or ".join([*advice, *found.advice])
        return f"step {step}, epoch {step / self._epoch_steps:.2f}: {symptoms}. To do: {todo}"
