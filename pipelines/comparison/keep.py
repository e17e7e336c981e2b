"""A comparison in MLflow: a run of kind `comparison` with its tables and figures."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.tracking import Tracker
from pipelines.comparison.bars import draw_bars
from pipelines.comparison.blocks import SECONDS, Block, Row
from pipelines.comparison.cost_figure import draw_costs
from pipelines.comparison.costs import costs_of
from pipelines.comparison.critical import draw_critical, why_not
from pipelines.comparison.grid import Grid
from pipelines.comparison.heat import draw_heat
from pipelines.comparison.sheet import Sheet, as_markdown

SCORES, GRID = "scores.json", "task_by_aggregator.json"
_NOTE = 5000  # characters of a description, which older stores cut
_REST = "All tables are in the artifact `compare.md`."


def draw_all(blocks: Sequence[Block], grid: Grid | None, folder: Path) -> list[Path]:
    """Draw every figure that there is something for, and return their files."""
    paths = [folder / "compare.png"]
    draw_bars(blocks, paths[0])
    if draw_costs(blocks, folder / "costs.png"):
        paths.append(folder / "costs.png")
    if grid is not None:
        paths.append(folder / "heat_map.png")
        draw_heat(grid, paths[-1])
    if not why_not(grid):
        paths.append(folder / "critical_difference.png")
        draw_critical(grid, paths[-1])
    return paths


def keep(
    experiment: str,
    *,
    uri: str,
    home: Path,
    blocks: Sequence[Block],
    grid: Grid | None,
    sheets: Sequence[Sheet],
    texts: dict[str, str],
) -> str:
    """Record a comparison and return the id of its run.

    Args:
        experiment: that of the runs.
        uri, home: as for any run.
        blocks: what was compared.
        grid: task x aggregator, if there is more than one task or data set.
        sheets: the tables; the last one is kept for the UI, too, where there is a grid.
        texts: further files, by name.
    """
    tracker = Tracker.start(
        experiment,
        uri=uri,
        home=home,
        name="comparison",
        tags={"kind": "comparison", "mlflow.note.content": note(sheets)},
        params={"blocks": "; ".join(block.title for block in blocks)},
    )
    status = "FAILED"
    try:
        with tempfile.TemporaryDirectory() as made:
            for path in draw_all(blocks, grid, Path(made)):
                tracker.artifact(path)
        for name, text in texts.items():
            tracker.text(name, text)
        tracker.table(SCORES, score_table(blocks))
        if grid is not None:
            tracker.table(GRID, text_table(sheets[-1]))
        status = "FINISHED"
    finally:
        tracker.finish(status)
    return tracker.run_id


def note(sheets: Sequence[Sheet]) -> str:
    """Return the description of the run, which the UI shows first: the tables from the last one on, while they fit."""
    parts: list[str] = []
    for sheet in reversed(sheets):
        part = as_markdown(sheet, level=3)
        if sum(len(text) + 2 for text in (*parts, part, _REST)) > _NOTE:
            return "\n\n".join([*parts, _REST])
        parts.append(part)
    return "\n\n".join(parts)


def text_table(sheet: Sheet) -> dict[str, list[str]]:
    """Return the cells of a table by its columns."""
    rows = [[" ".join(name.split()) for name in cells] for cells in (sheet.header, *sheet.rows)]
    return {name: list(column) for name, *column in zip(*rows, strict=True)}


def score_table(blocks: Sequence[Block]) -> dict[str, list[Any]]:
    """Return one line for each row of each block, as columns of numbers; None where one is not known."""
    lines = [_line(block, row) for block in blocks for row in block.rows]
    return {name: [line[name] for line in lines] for name in lines[0]}


def _line(block: Block, row: Row) -> dict[str, Any]:
    costs, found, reference = costs_of(row), None, None
    if block.bootstrap is not None:
        reference = block.bootstrap.labels[0]
        found = block.bootstrap.difference(row.label, reference)
    numbers = {
        "mean": row.mean(block.metric),
        "deviation": row.deviation(block.metric),
        "centred": block.centred(row.mean(block.metric)),
        "difference": found.value if found else math.nan,
        "low": found.low if found else math.nan,
        "high": found.high if found else math.nan,
        "weights": costs.weights,
        "step_ms": costs.step_ms,
        "embed_ms": costs.embed_ms,
        "train_seconds": row.mean(SECONDS),
    }
    return {
        "task": block.task,
        "dataset": block.dataset,
        "protocol": block.protocol,
        "aggregator": row.aggregator or row.label,
        "metric": block.metric,
        **{name: None if math.isnan(value) else round(value, 4) for name, value in numbers.items()},
        "against": reference,
        "real": found.real if found else None,
        "recipe": row.recipe,
        "model": row.model,
        "seeds": ", ".join(row.seeds),
    }
