"""Columns beside the vectors of a store, such as boxes: each is a store of its own, of the same sets.

They are in the folder `columns` of the store, with the same rows and elements. The store's source has their widths,
`{"columns": {"boxes": 4}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.errors import AbsentError, InputError, MissingError
from polypool.infra.storage import Url, place
from polypool.infra.store.feature_store import FeatureStore, column_place, column_source
from polypool.infra.store.findings import Skipped
from polypool.infra.store.ids import IdSet
from polypool.infra.store.manifest import COLUMNS
from polypool.infra.store.writer import StoreWriter


class ColumnsWriter:
    """Writes the columns of a store, float32; it is closed before the store's writer, and resumed like it.

    Args:
        folder: of the store.
        widths: numbers of an element in each column.
        source: of the store, as `with_columns` returns it.
        extends: add to complete columns, as of `StoreWriter`.

    Raises:
        InputError: a column is there of other sets, or another process writes to it.
    """

    def __init__(
        self,
        folder: str | Path | Url,
        widths: Mapping[str, int],
        *,
        source: dict[str, Any],
        extends: bool = False,
    ) -> None:
        self.widths = widths
        self._exits = ExitStack()
        self._writers: dict[str, StoreWriter] = {}
        for name, width in widths.items():
            at = column_place(place(folder), name)
            own = column_source(name, json.loads(json.dumps(source)))  # as it is read back: no tuples
            if not _complete(at, own, extends=extends):
                writer = StoreWriter(at, dim=width, dtype="float32", source=own, extends=extends)
                self._writers[name] = self._exits.enter_context(writer)

    @property
    def done(self) -> list[IdSet]:
        """The ids that earlier writers stored, for each unfinished column."""
        return [writer.done for writer in self._writers.values()]

    def offer(
        self,
        writer: StoreWriter,
        id: str,
        x_ND: np.ndarray,
        columns: Mapping[str, np.ndarray],
        *,
        where: str,
    ) -> str | None:
        """Store a set with its columns; one that cannot be stored is skipped whole, and the reason returned.

        Args:
            writer: of the store that the columns are of.
            id, x_ND, where: see `StoreWriter.offer`.
            columns: `(N, C)` each, by name.
        """
        if why := self._refuse(columns, len(x_ND)):
            writer.note(Skipped(where=where, why=why))
            return why
        if (why := writer.offer(id, x_ND, where=where)) is None:
            for name, column in self._writers.items():  # without those that an earlier writer finished
                column.offer(id, columns[name], where=where)
        return why

    def _refuse(self, columns: Mapping[str, np.ndarray], size: int) -> str | None:
        """Return why the columns of a set cannot be stored, in the same words for all such sets."""
        if {*columns} != {*self.widths}:
            return f"columns {', '.join(columns) or 'none'}, expected {', '.join(self.widths) or 'none'}"
        for name, x_NC in columns.items():
            if x_NC.shape != (size, self.widths[name]):
                return f"{name} of another shape than (vectors, {self.widths[name]})"
            if x_NC.dtype.kind not in "fiu" or not np.isfinite(x_NC).all():
                return f"{name} that are no finite numbers"
        return None

    def __enter__(self) -> ColumnsWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)


def with_columns(source: dict[str, Any], widths: Mapping[str, int]) -> dict[str, Any]:
    """Return the source of a store that has columns."""
    return source | {COLUMNS: dict(widths)} if widths else source


def _complete(at: Path | Url, source: dict[str, Any], *, extends: bool) -> bool:
    """Whether an interrupted writer finished a column of the same sets; with `extends` there may be one of fewer."""
    try:
        found = FeatureStore.open(at)
    except (AbsentError, MissingError):
        return False
    if extends and found.manifest.source != source:
        return False
    if found.manifest.source != source:
        raise InputError(f"{at}: holds a column of another store; remove this folder to write it anew")
    return True
