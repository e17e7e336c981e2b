"""One line of the benchmark's table: two things measured side by side, their ratio, and what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured, and how it came out.

    Args:
        name: what the table calls it.
        measured: what the numbers are, and of what.
        unit: of `ours` and `reference`.
        ours: the project's number.
        reference: what it is held against.
        ratio: the median over the rounds; always so formed that `goal` says which way is better.
        spread: the lowest and the highest round's ratio; None where there was one round.
        goal: whether the ratio should be at least or at most the target.
        target: None where there is nothing to reach.
        percent: show the ratio as a percentage, for a part of a whole.
        note: what else a reader should know, in a sentence or two.
    """

    name: str
    measured: str
    unit: str
    ours: float
    reference: float
    ratio: float
    spread: tuple[float, float] | None = None
    goal: Literal["at least", "at most"] = "at least"
    target: float | None = None
    percent: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None where there is none."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.goal == "at least" else self.ratio <= self.target

    def cells(self) -> tuple[str, ...]:
        """Return the row as the table shows it: name, ours, reference, ratio, target, met."""
        ratio = self._show(self.ratio)
        if self.spread is not None:
            low, high = (self._show(bound)[:-1] for bound in self.spread)
            ratio = f"{ratio} ({low}-{high})"
        sign = ">=" if self.goal == "at least" else "<="
        target = "-" if self.target is None else f"{sign} {self._show(self.target)}"
        met = {None: "-", True: "met", False: "MISSED"}[self.met]
        return self.name, self._amount(self.ours), self._amount(self.reference), ratio, target, met

    def _show(self, ratio: float) -> str:
        return f"{100 * ratio:.1f}%" if self.percent else f"{ratio:.2f}x"

    def _amount(self, value: float) -> str:
        digits = max(0, 2 - len(f"{abs(value):.0f}".lstrip("0")))
        return f"{value:,.{digits}f} {self.unit}"
