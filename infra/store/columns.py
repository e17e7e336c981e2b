"""What a store holds beside the vectors of its sets, such as boxes: for each a store of its own, of the same sets.

They lie in the folder `columns` of the store, row by row and element by element beside its vectors. The store's source
names them with the numbers that an element has there, `{"columns": {"boxes": 4}}`; a store without such is none the
older for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from infra.errors import AbsentError, InputError, MissingError
from infra.storage.places import Url, place
from infra.store.ids import IdSet
from infra.store.manifest import COLUMNS
from infra.store.reader import FeatureStore, column_place, column_source
from infra.store.writer import StoreWriter


class ColumnsWriter:
    """Writes columns, set by set as the store beside them is written, float32; to be closed before it.

    One that died is taken up as the store's own writer is: the same sets in the same order give the same bytes.

    Args:
        folder: of the store.
        widths: how many numbers an element has in each column.
        source: of the store, as `with_columns` gives it.

    Raises:
        InputError: a column is there of other sets, or somebody else writes to it.
    """

    def __init__(
        self, folder: str | Path | Url, widths: Mapping[str, int], *, source: dict[str, Any]
    ) -> None:
        self.widths = widths
        self._exits = ExitStack()
        self._writers: dict[str, StoreWriter] = {}
        for name, width in widths.items():
            at = column_place(place(folder), name)
            own = column_source(name, json.loads(json.dumps(source)))  # as it is read back: no tuples
            if not _complete(at, own):
                writer = StoreWriter(at, dim=width, dtype="float32", source=own)
                self._writers[name] = self._exits.enter_context(writer)

    @property
    def done(self) -> list[IdSet]:
        """The ids that earlier writers stored, of each column that is not finished."""
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
            writer.skip(where, why)
            return why
        if (why := writer.offer(id, x_ND, where=where)) is None:
            for name, column in self._writers.items():  # what an earlier writer finished is passed over
                column.offer(id, columns[name], where=where)
        return why

    def _refuse(self, columns: Mapping[str, np.ndarray], size: int) -> str | None:
        """Return why the columns of a set of `size` elements cannot be stored, in words alike for all such sets."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.__exit__(kind, error, trace)


def with_columns(source: dict[str, Any], widths: Mapping[str, int]) -> dict[str, Any]:
    """Return the source of a store with the columns that it is to have."""
    return source | {COLUMNS: dict(widths)} if widths else source


def _complete(at: Path | Url, source: dict[str, Any]) -> bool:
    """Whether a column was finished, of the same sets, by a writer that died before the store was."""
    try:
        found = FeatureStore.open(at)
    except (AbsentError, MissingError):
        return False
    if found.manifest.source != source:
        raise InputError(f"{at}: holds a column of another store; remove this folder to write it anew")
    return True
