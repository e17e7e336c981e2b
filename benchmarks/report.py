"""What a call of the benchmarks measured: its rows as they come, its tables, and the targets that were missed."""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass, field

from benchmarks.measure import Measurement, Scale
from polypool.infra.text_tables import aligned

SLACK: dict[Scale, float] = {"full": 1.0, "quick": 2.0}
"""How many times off its target a ratio may be: a short measurement on a busy machine shows what is broken, no more."""
COLUMNS = ("row", "ours", "reference", "ratio (lowest-highest)", "target", "met")
HEADER = ("row", "what", "ours", "reference", "ratio", "target")
"""The columns of the table of docs/speed.md."""
WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """What came out; it is filled row by row, so that it can be shown whenever measuring ends.

    Args:
        scale: at which it is measured.
        rows: by benchmark, in order.
        unmeasured: benchmarks that this machine cannot run, and why.
        failed: benchmarks that ended with an error, and which.
    """

    scale: Scale
    rows: dict[str, list[Measurement]] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def all_rows(self) -> list[Measurement]:
        """The rows of all benchmarks."""
        return list(itertools.chain.from_iterable(self.rows.values()))

    def line(self, row: Measurement) -> str:
        """Return a row as a line of its own."""
        name, ours, reference, ratio, target, met = row.entries(SLACK[self.scale])
        wanted = "" if row.target is None else f", target {target}: {met}"
        return f"{name}: {ours} against {reference}, {ratio}{wanted}"

    def __str__(self) -> str:
        """Return table and notes, at most 110 columns wide."""
        left = (0, len(COLUMNS) - 1)
        rows = self.all_rows
        lines = [
            *aligned(COLUMNS, [row.entries(SLACK[self.scale]) for row in rows], width=WIDTH, left=left),
            "",
        ]
        for row in rows:
            lines += wrapped(f"{row.name}: {row.measured}. {row.note}")
        for name, why in self.unmeasured.items():
            lines += wrapped(f"{name}: not measured: {why}")
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the rows as the table of docs/speed.md, without details."""
        lines = [f"| {' | '.join(HEADER)} |", "| --- | --- | ---: | ---: | ---: | ---: |"]
        for row in self.all_rows:
            if not row.detail:
                name, ours, reference, ratio, target, _ = row.entries()
                lines.append(f"| {name} | {row.measured} | {ours} | {reference} | {ratio} | {target} |")
        return "\n".join(lines)

    def complaints(self) -> list[str]:
        """Return a line for each target that was missed, and for each benchmark that failed."""
        slack = SLACK[self.scale]
        missed = [
            f"{row.name}: {row.shown_ratio()}, wanted {row.shown_target(slack)}"
            for row in self.all_rows
            if row.misses(slack)
        ]
        return [*missed, *(f"{name}: failed: {error}" for name, error in self.failed.items())]


def wrapped(note: str) -> list[str]:
    """Return the lines of a note in a list of notes."""
    return textwrap.wrap(note, WIDTH, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
