"""The rows of a block compared query by query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from infra.errors import InputError
from infra.tracking import RunRecord
from pipelines.comparison.blocks import Block, Row
from pipelines.comparison.bootstrap import paired_bootstrap
from pipelines.comparison.per_query import Units, mean_units, units_of

Read = Callable[[RunRecord, str], Mapping[str, np.ndarray]]
"""Returns what a run kept of its queries under a protocol, or raises InputError."""


def with_differences(block: Block, read: Read) -> tuple[Block, list[str]]:
    """Return a block that knows which of its differences are real, and notes on rows that could not be compared."""
    rows = [row for row in block.rows if row.runs and block.metric in row.values]
    if len(rows) < 2:
        return block, []
    found: dict[str, Units] = {}
    notes = []
    for row in rows:
        try:
            units = _units(row, block, read)
            first = next(iter(found.values()), units)
            if not units.same_queries(first):
                raise InputError("it was scored on other queries than the rows before it")
            found[row.label] = units
        except InputError as error:
            notes.append(f"{row.label} ({block.protocol}) is left out of the bootstrap: {error}")
    if len(found) < 2:
        return block, notes
    units = next(iter(found.values()))
    try:
        compared = paired_bootstrap(
            np.stack([of.sum_Pn for of in found.values()]),
            units.count_Pn,
            labels=tuple(found),
            units=f"{len(units.ids):,} {units.kind}",
        )
    except InputError as error:
        return block, [*notes, f"no bootstrap for {block.title}: {error}"]
    return replace(block, bootstrap=compared), notes


def same_as_best(block: Block, row: Row, best: Row | None = None) -> bool | None:
    """Whether a row's difference from the best is not real; None for the best itself, and where that is not known."""
    best = best or block.rows[0]
    if block.bootstrap is None or row.label == best.label:
        return None
    difference = block.bootstrap.difference(best.label, row.label)
    return None if difference is None else not difference.real


def _units(row: Row, block: Block, read: Read) -> Units:
    runs = zip(row.runs, row.values[block.metric], strict=True)
    return mean_units([units_of(read(run, block.protocol), block.metric, value) for run, value in runs])
