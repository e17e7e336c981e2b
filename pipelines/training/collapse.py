"""A watch for runs that have collapsed, so that nobody waits for them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from tasks.abilities import Collapse, Watchful
from tasks.base import Evaluation, TaskAdapter
from tasks.run import Optim

FEWEST, FEWEST_AT_END = 10, 3
"""Steps in a row that are enough in the shortest epochs, within one and at its end."""


class CollapseWatch:
    """Looks at what a run logs, without a pass of its own, and says once that it has collapsed.

    That is, when the steps of half an epoch, one after the other, look like it, at an epoch's end those of its last
    quarter, or an evaluation.

    Args:
        adapter: of the task, which knows what a collapse looks like.
        optim: settings that may have led to it.
        epoch_steps: steps of an epoch.
    """

    def __init__(self, adapter: TaskAdapter, optim: Optim, *, epoch_steps: int) -> None:
        self._adapter = adapter if isinstance(adapter, Watchful) else None
        self._optim, self._epoch_steps = optim, epoch_steps
        self._first: Mapping[str, Tensor] = {}
        self._found: Collapse | None = None
        self._alike, self._said = 0, False

    def begin(self, terms: Mapping[str, Tensor]) -> None:
        """Keep what the first step of a run logged."""
        self._first = {name: value.detach().clone() for name, value in terms.items()}

    def trained(
        self, model: nn.Module, means: Mapping[str, float], *, steps: int, step: int, at_end: bool
    ) -> str:
        """Look at the means of some steps; return what to say of them, mostly nothing.

        Args:
            model: that is trained.
            means: of what they logged.
            steps: how many they are, since the last that were looked at; may be 0.
            step: the last of them.
            at_end: whether that is the end of an epoch.
        """
        if self._adapter is None or self._said:
            return ""
        if steps:
            first = {name: float(value) for name, value in self._first.items()}
            epoch = (step - 1) / self._epoch_steps
            self._found = self._adapter.collapse(model, means, first=first, epoch=epoch)
            self._alike = self._alike + steps if self._found else 0
        share, fewest = (4, FEWEST_AT_END) if at_end else (2, FEWEST)
        enough = self._alike >= max(self._epoch_steps / share, fewest)
        return self._say(self._found, step=step) if enough and self._found else ""

    def evaluated(self, evaluation: Evaluation, *, step: int) -> str:
        """Look at an evaluation, likewise."""
        if self._adapter is None or self._said or not step:
            return ""
        found = self._adapter.collapse_of(evaluation)
        return self._say(found, step=step) if found else ""

    def _say(self, found: Collapse, *, step: int) -> str:
        self._said = True
        optim = self._optim
        advice = [f"a smaller learning rate (--optim.lr {optim.lr / 10:.2g}, now {optim.lr:.2g})"]
        if not optim.warmup_steps:
            advice.append("a warm-up (--optim.warmup-steps 500)")
        symptoms, todo = "; ".join(found.symptoms), ", or ".join([*advice, *found.advice])
        return f"step {step}, epoch {step / self._epoch_steps:.2f}: {symptoms}. To do: {todo}"
