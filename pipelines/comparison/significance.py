"""The rows of a group compared query by query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from infra.errors import InputError
from infra.tracking import RunRecord
from pipelines.comparison.bootstrap import paired_bootstrap
from pipelines.comparison.groups import Group, Row
from pipelines.comparison.per_query import Units, mean_units, units_of

Read = Callable[[RunRecord, str], Mapping[str, np.ndarray]]
"""Returns what a run kept of its queries under a protocol, or raises InputError."""


def with_differences(group: Group, read: Read) -> tuple[Group, list[str]]:
    """Return a group that knows which of its differences are real, and notes on rows that could not be compared."""
    rows = [row for row in group.rows if row.runs and group.metric in row.values]
    if len(rows) < 2:
        return group, []
    found: dict[str, Units] = {}
    notes = []
    for row in rows:
        try:
            units = _units(row, group, read)
            first = next(iter(found.values()), units)
            if not units.same_queries(first):
                raise InputError("it was scored on other queries than the rows before it")
            found[row.label] = units
        except InputError as error:
            notes.append(f"{row.label} ({group.protocol}) is left out of the bootstrap: {error}")
    if len(found) < 2:
        return group, notes
    units = next(iter(found.values()))
    try:
        compared = paired_bootstrap(
            np.stack([of.sum_Pn for of in found.values()]),
            units.count_Pn,
            labels=tuple(found),
            units=f"{len(units.ids):,} {units.kind}",
        )
    except InputError as error:
        return group, [*notes, f"no bootstrap for {group.title}: {error}"]
    return replace(group, bootstrap=compared), notes


def same_as_best(group: Group, row: Row, best: Row | None = None) -> bool | None:
    """Whether a row's difference from the best is not real; None for the best itself, and where that is not known."""
    best = best or group.rows[0]
    if group.bootstrap is None or row.label == best.label:
        return None
    difference = group.bootstrap.difference(best.label, row.label)
    return None if difference is None else not difference.significant


def _units(row: Row, group: Group, read: Read) -> Units:
    runs = zip(row.runs, row.values[group.metric], strict=True)
    return mean_units([units_of(read(run, group.protocol), group.metric, value) for run, value in runs])
