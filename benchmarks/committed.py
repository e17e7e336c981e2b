"""The table of docs/speed.md, and which rows of a new measurement differ from it by more than their noise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.measure import Measurement
from benchmarks.report import HEADER, wrapped

PAGE = Path(__file__).parents[1] / "docs/speed.md"
MACHINE = "Machine: "
"""Begins the line of the page that names the machine of its numbers, as `Machine.brief` does."""
LONE = 0.1
"""Noise of a ratio that was measured once, as a part of it."""
_RATIO = re.compile(r"([\d,.]+)([x%])(?: \(([\d,.]+)-([\d,.]+)\))?")
_UNITS = {"x": (1.0, 0.005), "%": (0.01, 0.0005)}
"""What a shown number is multiplied by, and half of its last digit."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A row of the page.

    Args:
        measured: what its numbers measure.
        shown: its ratio, as the page has it.
        low: the lowest ratio that noise and rounding explain.
        high: the highest.
    """

    measured: str
    shown: str
    low: float
    high: float

    @classmethod
    def of(cls, measured: str, shown: str) -> Self | None:
        """Read a ratio as `Measurement.shown_ratio` writes it; None where there is none."""
        found = _RATIO.fullmatch(shown)
        if found is None:
            return None
        ratio, sign, low, high = found.groups()
        unit, rounding = _UNITS[sign]
        number, least, most = (unit * float((each or ratio).replace(",", "")) for each in (ratio, low, high))
        lone = LONE * number if low is None else 0.0
        return cls(measured=measured, shown=shown, low=least - lone - rounding, high=most + lone + rounding)


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The page's table.

    Args:
        machine: that it was measured on.
        rows: those with a ratio, by name.
    """

    machine: str
    rows: Mapping[str, Kept]

    @classmethod
    def read(cls, path: Path = PAGE) -> Self:
        """Read the page; without one, no row is known."""
        lines = path.read_text().splitlines() if path.exists() else []
        machine = next((line.removeprefix(MACHINE) for line in lines if line.startswith(MACHINE)), "")
        rows = {}
        for line in lines:
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if line.startswith("| ") and len(cells) == len(HEADER):
                name, measured, _, _, ratio, _ = cells
                rows[name] = Kept.of(measured, ratio)
        return cls(machine=machine, rows={name: row for name, row in rows.items() if row is not None})

    def changes(self, measured: Iterable[Measurement], *, machine: str) -> str:
        """Return which rows changed: those whose spread has nothing in common with the page's, better or worse.

        A ratio without a spread may be off by `LONE`. A row that measures something else than on the page, such as
        another size, is compared with nothing.

        Args:
            measured: the rows; details are left out.
            machine: that they were measured on.
        """
        found = [row for row in measured if not row.detail]
        same = [row for row in found if row.name in self.rows and self._alike(row)]
        changed = [line for row in same if (line := self._change(row))]
        others = ", ".join(row.name for row in found if row not in same)
        lines = [f"changed since the table of docs/speed.md: {len(changed)} of {len(same)} rows"]
        if machine != self.machine:
            where = self.machine or "no machine that it names"
            lines += wrapped(
                f"That is of another machine, {where}; this is {machine}. Ratios are compared all the same."
            )
        for line in changed:
            lines += wrapped(line)
        if others:
            lines += wrapped(f"not compared, as the table has no number for the same: {others}")
        return "\n".join(lines)

    def _alike(self, row: Measurement) -> bool:
        return self.rows[row.name].measured == row.measured

    def _change(self, row: Measurement) -> str:
        """Return the line of a row that changed; empty for another."""
        kept, shown = self.rows[row.name], row.shown_ratio()
        new = Kept.of(row.measured, shown)
        if new is None:  # NaN
            return f"{row.name}: {kept.shown} -> {shown}, worse"
        if new.low <= kept.high and kept.low <= new.high:
            return ""
        better = (new.low > kept.high) == (row.goal == "at least")
        return f"{row.name}: {kept.shown} -> {shown}, {'better' if better else 'worse'}"
