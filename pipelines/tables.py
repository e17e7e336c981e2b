"""Runs as blocks of comparable rows, and those as text for a terminal and as Markdown."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WIDTH = 120
METRICS = (
    "rsum",
    *(f"{direction}/R{k}" for direction in ("i2t", "t2i", "v2t", "t2v") for k in (1, 5, 10)),
    *("t2t/R1", "i2i/R1"),
    *("accuracy", "yes_no", "number", "other", "accuracy_2017", "prior_accuracy"),
)
"""What tables show of the metrics that runs have, in this order; the first one sorts the rows."""
SECONDS = "train s"
LOWER_IS_BETTER = ("medr", "meanr", "loss", SECONDS)
_ABSENT = "\u2013"  # an en dash
_ASIDE = ("chance_rsum", "ties")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One aggregator: the values of every metric, one a run, in the order of `seeds`."""

    label: str
    seeds: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]

    def mean(self, metric: str) -> float:
        """Return the mean over runs; NaN where a run lacks the metric."""
        values = self.values.get(metric, ())
        return statistics.fmean(values) if len(values) == len(self.seeds) else math.nan

    def deviation(self, metric: str) -> float:
        """Return the sample standard deviation over runs; NaN for one run."""
        values = self.values.get(metric, ())
        return statistics.stdev(values) if len(values) == len(self.seeds) > 1 else math.nan


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows that may be compared: one task, one data set, one protocol; the best row first."""

    task: str
    dataset: str
    protocol: str
    metric: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.task} · {self.dataset} · {self.protocol}"

    @property
    def chance(self) -> float:
        """What random scores reach of `metric`; NaN where no run noted it."""
        known = [row.mean(f"chance_{self.metric}") for row in self.rows]
        return next((value for value in known if not math.isnan(value)), math.nan)

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics shown: those of `METRICS`, or all that the runs have; the deciding one among them."""
        had = {metric for row in self.rows for metric in row.values}
        shown = [metric for metric in METRICS if metric in had] or sorted(had - {SECONDS, *_ASIDE})
        first = () if self.metric in shown else (self.metric,)
        return (*first, *shown, *((SECONDS,) if SECONDS in had else ()))


def lower_is_better(metric: str) -> bool:
    """Whether small values of a metric are good ones."""
    return metric.rpartition("/")[2] in LOWER_IS_BETTER


def ordered(rows: Iterable[Row], metric: str) -> tuple[Row, ...]:
    """Sort rows, the best first and those without the metric last."""

    def key(row: Row) -> tuple[bool, float, str]:
        mean = row.mean(metric)
        return math.isnan(mean), mean if lower_is_better(metric) else -mean, row.label

    return tuple(sorted(rows, key=key))


def as_text(block: Block) -> str:
    """Return an aligned table; long labels are wrapped so that it stays within `WIDTH` columns."""
    cells = [_header(block), *([*_cells(block, row, one=f" {_ABSENT}")] for row in block.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    room = max(12, WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    widths[0] = min(widths[0], room)
    lines = [block.title, _legend(block), ""]
    for cell in cells:
        label, *more = textwrap.wrap(cell[0], widths[0])
        numbers = (text.rjust(width) for text, width in zip(cell[1:], widths[1:], strict=True))
        lines += ["  ".join([label.ljust(widths[0]), *numbers]), *more]
    lines.insert(4, "-" * max(len(line) for line in lines[3:]))
    return "\n".join(lines)


def as_markdown(block: Block) -> str:
    """Return a Markdown table under a heading."""
    rows = [_header(block), *([f"`{row.label}`", *_cells(block, row)[1:]] for row in block.rows)]
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
    lines.insert(1, "|---|" + "---:|" * (len(rows[0]) - 1))
    return "\n".join([f"## {block.title}", "", f"{_legend(block).capitalize()}.", "", *lines])


def _legend(block: Block) -> str:
    chance = "" if math.isnan(block.chance) else f"; chance {block.metric} {block.chance:.1f}"
    return f"sorted by {block.metric}; mean ± sample standard deviation over runs{chance}"


def _header(block: Block) -> list[str]:
    return ["aggregator", "runs", *(column.replace("/", " ") for column in block.columns)]


def _cells(block: Block, row: Row, *, one: str = _ABSENT) -> list[str]:
    return [row.label, str(len(row.seeds)), *(_number(row, column, one) for column in block.columns)]


def _number(row: Row, column: str, one: str) -> str:
    mean, deviation = row.mean(column), row.deviation(column)
    if math.isnan(mean):
        return _ABSENT
    if column == SECONDS:
        return f"{mean:.0f}"
    return f"{mean:.1f} ± {one if math.isnan(deviation) else f'{deviation:.1f}'}"
