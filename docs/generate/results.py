"""What the result files of the repository hold of an aggregator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from docs.generate.parts import code, table
from infra.spec import Spec
from pipelines.comparison.result_files import read_results
from pipelines.comparison.results import Result

FILE = "rows.csv"
TABLES = {"ideas": "on-three-tasks", "late": "and-no-pooling"}
"""The file of `pipelines/results` that has every row; tables of it whose rows can be compared with each other, and the
section of `poolings.md` on each."""
_TEXT = ", text "
"""Stands in a row between the aggregator of images and that of texts, where they differ."""


@cache
def _decisive(path: Path) -> tuple[Result, ...]:
    return tuple(record for record in read_results(path) if record.decides)


def spec_of(row: str) -> Spec:
    """Return the spec of the aggregator of images, or of both sides, that a row names."""
    return Spec.parse(row.partition(_TEXT)[0])


def results_of(name: str, folder: Path) -> str:
    """Return the results of an aggregator, with links as from the folder `aggregators`; empty for none.

    Args:
        name: of the aggregator.
        folder: of the result files.
    """
    for name_of_table, section in TABLES.items():
        records = _decisive(folder / f"{FILE}#{name_of_table}")
        own = [record for record in records if spec_of(record.aggregator).name == name]
        if own:
            rows = [_row(record, records) for record in own]
            heads = ("row", "data set", "metric", "mean", "place", "chance", "weights", "step")
            return f"{table(heads, rows, right=range(3, 8))}\n\n{_legend(name_of_table, section)}"
    return ""


def _row(record: Result, records: Sequence[Result]) -> tuple[str, ...]:
    column = [other.mean for other in records if _column(other) == _column(record) and other.mean is not None]
    sign = 1 if record.higher_is_better else -1
    place = 1 + sum(sign * other > sign * record.mean for other in column)
    deviation = "" if record.deviation is None else f" ± {record.deviation:.1f}"
    same = "\\*" if record.against and record.p is not None and record.p >= 0.05 else ""
    return (
        code(record.row),
        f"{record.dataset} ({record.task})",
        f"{record.metric}, `{record.protocol}`",
        f"{record.mean:.1f}{deviation}{same}",
        f"{place} of {len(column)}",
        _number(record.chance),
        _number(record.weights, digits=0),
        _number(record.step_cost),
    )


def _number(value: float | None, *, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _column(record: Result) -> tuple[str, ...]:
    return record.task, record.dataset, record.protocol, record.metric


def _legend(table: str, section: str) -> str:
    return (
        "Mean ± sample standard deviation over seeds; \\*: no significant difference from the best of its column, "
        "corrected by Holm. Weights of the aggregators as they were trained; a step in products of two 512 x 512 "
        f"matrices. From [{FILE}](../pipelines/results/{FILE}), `{table}`; "
        f"[how it was trained](../pipelines/results/poolings.md#{section}), with all rows."
    )
