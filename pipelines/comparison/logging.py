"""A comparison in MLflow: a run of kind `comparison` with its tables and figures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from infra.process.beside import beside
from infra.tracking import Tracker
from infra.tracking.provenance import command_line
from infra.tracking.tracker import NOTE
from pipelines.comparison.figures.costs import draw_costs
from pipelines.comparison.figures.critical import draw_critical
from pipelines.comparison.figures.parameters import draw_parameters
from pipelines.comparison.figures.scores import draw_bars, draw_heat
from pipelines.comparison.results import columns, results
from pipelines.comparison.runs.groups import Group
from pipelines.comparison.tables.cross_task import CrossTaskTable, why_not
from pipelines.comparison.tables.render import Table, as_markdown

SCORES, CROSS_TASK = "scores.json", "task_by_aggregator.json"
_LONGEST = 5000  # characters of a description, which older stores cut
_REST = "All tables are in the artifact `compare.md`."


def draw_all(groups: Sequence[Group], cross_task: CrossTaskTable | None, folder: Path) -> list[Path]:
    """Draw every figure that there is something for, and return their files."""
    paths = []
    if any(group.metric for group in groups):
        paths.append(folder / "compare.png")
        draw_bars(groups, paths[-1])
    if draw_costs(groups, folder / "costs.png"):
        paths.append(folder / "costs.png")
    if draw_parameters(groups, folder / "parameters.png"):
        paths.append(folder / "parameters.png")
    if cross_task is not None:
        paths.append(folder / "heat_map.png")
        draw_heat(cross_task, paths[-1])
    if not why_not(cross_task):
        paths.append(folder / "critical_difference.png")
        draw_critical(cross_task, paths[-1])
    return paths


def log_comparison(
    experiment: str,
    *,
    kept_in: str,
    uri: str,
    home: Path,
    groups: Sequence[Group],
    cross_task: CrossTaskTable | None,
    tables: Sequence[Table],
    texts: dict[str, str],
) -> str:
    """Record a comparison and return the id of its run.

    Args:
        experiment: that of the runs.
        kept_in: that of the comparison.
        uri, home: as for any run.
        groups: what was compared.
        cross_task: task x aggregator, if there is more than one task or data set.
        tables: the tables; the last one is logged for the UI, too, if it is task x aggregator.
        texts: further files, by name.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        beside(partial(draw_all, groups, cross_task, Path(folder))) as drawn,
    ):
        tracker = Tracker.start(
            kept_in,
            uri=uri,
            home=home,
            name=f"comparison of {experiment}",
            tags={"kind": "comparison", "compared": experiment, NOTE: note(tables)},
            params={"groups": "; ".join(group.title for group in groups)},
        )
        with tracker.ending():
            for path in drawn():
                tracker.artifact(path)
            for name, text in texts.items():
                tracker.text(name, text)
            tracker.table(
                SCORES, columns([of for of in results(groups, compared_by=command_line()) if of.decides])
            )
            if cross_task is not None:
                tracker.table(CROSS_TASK, text_table(tables[-1]))
    return tracker.run_id


def note(tables: Sequence[Table]) -> str:
    """Return the description of the run, which the UI shows first: the tables from the last one on, while they fit."""
    parts: list[str] = []
    for table in reversed(tables):
        part = as_markdown(table, level=3)
        if sum(len(text) + 2 for text in (*parts, part, _REST)) > _LONGEST:
            return "\n\n".join([*parts, _REST])
        parts.append(part)
    return "\n\n".join(parts)


def text_table(table: Table) -> dict[str, list[str]]:
    """Return the texts of a table by its columns."""
    rows = [[" ".join(name.split()) for name in entries] for entries in (table.header, *table.rows)]
    return {name: list(column) for name, *column in zip(*rows, strict=True)}
