"""Feature store writer: adds sets, writes shards of bounded size, and the manifest last.

Further columns, such as boxes, are separate stores in the folder `columns` of the store, with the same rows and
elements. The store's source has their widths, `{"columns": {"boxes": 4}}`.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from polypool.infra.errors import InputError, unknown
from polypool.infra.locks import lock_folder
from polypool.infra.process.progress import Progress
from polypool.infra.storage import Url, exists, place, publish, staging
from polypool.infra.store.feature_store import FeatureStore, column_place, column_source
from polypool.infra.store.findings import (
    SKIPPED,
    WARNINGS,
    Findings,
    Flagged,
    Skipped,
    Tolerance,
    describe,
    wrong_id,
)
from polypool.infra.store.manifest import COLUMNS, VERSION, Manifest, Shard
from polypool.infra.store.manifest import NAME as MANIFEST
from polypool.infra.store.shard import DTYPES, map_shard, open_written, write_shard
from polypool.infra.store.unfinished import OpenShard, Unfinished

_PIECE = 1 << 20  # numbers converted to float64 per chunk


class Moments:
    """Mean and variance in float64, accumulated by merging chunks; accurate for means far above the spread.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.

    Args:
        dim: number of channels D.

    Attributes:
        count: number of added vectors.
        mean: of each channel, `(D,)` float64.
    """

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.mean = np.zeros(dim)
        self._squares = np.zeros(dim)  # sum of squared distances to the mean

    def add(self, x_ND: np.ndarray) -> None:
        """Add vectors of any float type."""
        rows = max(1, _PIECE // x_ND.shape[1])
        for start in range(0, len(x_ND), rows):
            piece_ND = x_ND[start : start + rows].astype(np.float64)
            count, mean, total = len(piece_ND), piece_ND.mean(axis=0), self.count + len(piece_ND)
            apart = mean - self.mean
            self._squares += ((piece_ND - mean) ** 2).sum(axis=0) + apart**2 * (self.count * count / total)
            self.mean += apart * (count / total)
            self.count = total

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each channel (divided by the count), `(D,)` float64."""
        return np.sqrt(self._squares / max(1, self.count))


_UNDERFLOWN = 0.1
"""Share of a set's values that may be rounded to zero without a warning."""


def _largest(x_ND: np.ndarray) -> float:
    """Return the largest magnitude; not finite if any value is not."""
    if x_ND.dtype == np.float16:
        return float(_magnitudes(x_ND).max().view(np.float16))
    return max(float(x_ND.max()), -float(x_ND.min()))


def _values(x_ND: np.ndarray) -> int:
    """Return the number of nonzero values."""
    return int(np.count_nonzero(_magnitudes(x_ND) if x_ND.dtype == np.float16 else x_ND))


def _magnitudes(x_ND: np.ndarray) -> np.ndarray:
    """Return the bits of halves without signs, which have the same order and compare a hundred times faster."""
    return np.ascontiguousarray(x_ND).view(np.uint16) & 0x7FFF


class StoreWriter:
    """Writes sets in the order in which they are added.

    An interrupted writer leaves its finished shards and a draft of the unfinished one. A writer with the same dim,
    dtype and source resumes: their ids are in `done`, and it writes the missing sets. Given the same sets in the same
    order, the shards are identical, byte for byte. A store at a URL is written to the cache's folder and uploaded when
    complete.

    Args:
        folder: folder of the store, created if necessary, or its URL.
        dim: width D of every vector.
        dtype: `float16` or `float32`.
        source: origin of the features; any JSON values.
        shard_bytes: size of a full shard, which is also the memory used; a set is never split.
        extends: extend a complete store in the folder, whose sets this job includes.
        replaces: content of the folder that may be replaced: `unfinished` work of another job, or also a `complete`
            store. Unfinished work of `extract`, which takes hours, is never replaced.

    Attributes:
        done: ids that an earlier writer stored.
        count: number of stored sets.

    Raises:
        InputError: the folder holds a complete store or shards of another job that may not be replaced, or another
            process writes to it.
    """

    def __init__(
        self,
        folder: str | Path | Url,
        *,
        dim: int,
        dtype: str = "float16",
        source: dict[str, Any],
        shard_bytes: int = 256 << 20,
        extends: bool = False,
        replaces: Literal["", "unfinished", "complete"] = "",
    ) -> None:
        if dtype not in DTYPES:
            raise unknown("dtype of a store", dtype, DTYPES)
        if dim < 1:
            raise InputError(f"{folder}: vectors of width {dim}, expected at least 1")
        self._out, self.folder = folder, staging(folder, last=MANIFEST)
        self._release = weakref.finalize(self, lock_folder(self.folder).release)
        self.dim, self.dtype, self.source = dim, dtype, source
        self.done, self.count = set[str](), 0
        self._shards: list[Shard] = []
        self._findings = Findings()
        job = {"version": VERSION, "dim": dim, "dtype": dtype, "source": source}
        self._unfinished = Unfinished(self.folder, job)
        self._flagged: list[Flagged] = []  # warnings of the shard being filled
        try:
            if replaces:
                self._unfinished.discard(complete=replaces == "complete")
            if extends:
                self._unfinished.extend()
            self._resume(self._unfinished.begin())
        except BaseException:
            self._release()
            raise
        self._seen = set[str]()
        self._manifest: Manifest | None = None
        rows = max(1, shard_bytes // (dim * np.dtype(dtype).itemsize))
        self._open = OpenShard(dim=dim, dtype=dtype, rows=rows)
        self._resume_draft()

    def __contains__(self, id: str) -> bool:
        """Whether a set is stored as `id`."""
        return id in self.done or id in self._seen

    def add(self, id: str, x_ND: np.ndarray) -> None:
        """Store the set `x_ND` `(N, D)` as `id`.

        Raises:
            InputError: a duplicate id; a set that is empty, of another width, not finite, or too large for the dtype;
                or a full disk.
        """
        why = "duplicate id" if id in self.done else self._refuse(id, x_ND)
        if why:
            raise InputError(f"set {id!r}: {why}")
        self._append(id, x_ND, where=id)

    def offer(self, id: str, x_ND: np.ndarray, *, where: str) -> str | None:
        """Store a set; an invalid one is skipped as `where`, and the reason returned.

        Sets that an earlier writer stored are ignored, so that a resumed reader starts at its first row.
        """
        if id in self.done and id not in self._seen:
            self._seen.add(id)
            return None
        why = self._refuse(id, x_ND)
        if why:
            self.note(Skipped(where=where, why=why))
        else:
            self._append(id, x_ND, where=where)
        return why

    def note(self, case: Skipped | Flagged) -> None:
        """Count and list a skipped row or a warning."""
        self._findings.add(case)

    def close(self, *, statistics_of: Iterable[str] = (), tolerance: Tolerance | None = None) -> Manifest:
        """Write the last shard and then the manifest, which makes the store readable.

        Args:
            statistics_of: ids over whose vectors the mean and standard deviation per channel are computed, such as the
                training split; ids that are not stored are ignored, and without any stored id the manifest has no
                statistics.
            tolerance: of skipped and flagged sets; None for no limit. A refused store remains unfinished, and the same
                job with another tolerance finishes it.

        Raises:
            InputError: nothing was stored, the tolerance is exceeded, or the disk is full.
        """
        if self._manifest is not None:
            return self._manifest
        if len(self._open):
            self._flush()
        if not self._shards:
            skipped, _ = self._findings.close(self.folder)
            raise InputError(f"{self.folder}: there are no features to store; {describe(skipped)}")
        if tolerance is not None:
            self.judge(tolerance)
        skipped, flagged = self._findings.close(self.folder)
        manifest = Manifest(
            source=self.source,
            dim=self.dim,
            dtype=cast('Literal["float16", "float32"]', self.dtype),
            shards=tuple(self._shards),
            skipped=skipped,
            flagged=flagged,
            statistics=self._statistics(statistics_of),
        )
        manifest.write(self.folder)
        publish(
            self.folder, self._out, [*(shard.file for shard in self._shards), SKIPPED, WARNINGS, MANIFEST]
        )
        self._unfinished.end()
        self._manifest = manifest
        self._release()
        return manifest

    def judge(self, tolerance: Tolerance) -> None:
        """Refuse too many skipped sets; call it before columns are closed, so that a repeated job extends them, too.

        Raises:
            InputError: as `close`.
        """
        if self.count:  # `close` refuses an empty store
            self._findings.judge(self.folder, tolerance=tolerance, rows=({"": self.count}, "sets"))

    def _refuse(self, id: str, x_ND: np.ndarray) -> str | None:
        """Return why a set cannot be stored, the same text for all such sets."""
        if id in self._seen:
            return "duplicate id"
        if why := wrong_id(id):
            return why
        if x_ND.dtype.kind not in "fiu" or x_ND.ndim != 2:
            return f"{x_ND.dtype} of shape {x_ND.shape}, expected numbers of shape (N, {self.dim})"
        if len(x_ND) == 0:
            return "an empty set"
        if x_ND.shape[1] != self.dim:
            return f"vectors of width {x_ND.shape[1]}, expected {self.dim}"
        largest, limit = _largest(x_ND), float(np.finfo(self.dtype).max)
        if not np.isfinite(largest):
            return "NaN or infinite values"
        if largest > limit:
            return f"values beyond {limit:g}, the limit of {self.dtype}; float32 goes further"
        return None

    def _append(self, id: str, x_ND: np.ndarray, *, where: str) -> None:
        self._flag(x_ND, self._put(id, x_ND), where=where)
        self._seen.add(id)
        if self._unfinished.draft_due:
            self._unfinished.save_draft(self._open, self._flagged)

    def _put(self, id: str, x_ND: np.ndarray) -> np.ndarray:
        """Add a set to the open shard; return it in the stored precision."""
        if not self._open.has_room(len(x_ND)):
            self._flush()
        self.count += 1
        return self._open.put(id, x_ND)

    def _resume_draft(self) -> None:
        kept, flagged = self._unfinished.read_draft(self.done)
        if kept is not None:
            for row, id in enumerate(kept.names()):
                self._put(id, kept.view(row))
                self.done.add(id)
        self._flagged += flagged

    def _flag(self, x_ND: np.ndarray, stored_ND: np.ndarray, *, where: str) -> None:
        """Warn of all-zero sets, and of sets with over a tenth of their values rounded to zero."""
        values = _values(x_ND)
        if not values:
            self._flagged.append(Flagged(where=where, why="a set of zeros only"))
        elif (lost := values - _values(stored_ND)) > _UNDERFLOWN * values:
            case = f"{where}: {lost:,} of {values:,} values"
            why = f"values too small for {self.dtype}, stored as zeros; float32 keeps them"
            self._flagged.append(Flagged(where=case, why=why))

    def _flush(self) -> None:
        path = self.folder / f"shard-{len(self._shards):05d}.arrow"
        write_shard(path, **self._open.columns())
        shard, _ = open_written(path, dim=self.dim, dtype=self.dtype)
        self._unfinished.finish(shard, self._flagged)
        self._finished(shard)
        self._open.clear()
        self._flagged = []

    def _resume(self, finished: Sequence[Shard]) -> None:
        """Verify and adopt the finished shards of an interrupted writer."""
        for shard in Progress(finished, desc="finished shards", unit="shard", disable=not finished):
            path = self.folder / shard.file
            found, mapped = open_written(path, dim=self.dim, dtype=self.dtype)
            if found != shard:
                raise InputError(
                    f"{path}: changed since an interrupted writer finished it; remove it and the shards after it, and "
                    "repeat the command, which resumes there"
                )
            self._finished(found)
            self.count += found.sets
            self.done.update(mapped.names())

    def _finished(self, shard: Shard) -> None:
        self._shards.append(shard)
        for case in self._unfinished.flagged(shard.file):
            self.note(case)

    def _statistics(self, ids: Iterable[str]) -> dict[str, Any] | None:
        """Return `{"sets", "vectors", "mean", "std"}` over the stored sets with these ids; None without any."""
        if not (wanted := {id for id in ids if id in self}):
            return None
        moments = Moments(self.dim)
        for shard in Progress(self._shards, desc="statistics", unit="shard"):
            mapped = map_shard(self.folder / shard.file, shard, dim=self.dim, dtype=self.dtype)
            for row, id in enumerate(mapped.names()):
                if id in wanted:
                    moments.add(mapped[row])
        return {
            "sets": len(wanted),
            "vectors": moments.count,
            "mean": moments.mean.tolist(),
            "std": moments.std.tolist(),
        }

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._release()


class ColumnsWriter:
    """Writes the columns of a store, float32; close it before the store's writer. It resumes in the same way.

    Args:
        folder: of the store.
        widths: width of each column.
        source: of the store, from `with_columns`.
        extends: extend complete columns, see `StoreWriter`.

    Raises:
        InputError: an existing column has other sets, or another process writes to it.
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
            own = column_source(name, json.loads(json.dumps(source)))  # as read back from JSON: no tuples
            if not _complete(at, own, extends=extends):
                writer = StoreWriter(at, dim=width, dtype="float32", source=own, extends=extends)
                self._writers[name] = self._exits.enter_context(writer)

    @property
    def done(self) -> list[set[str]]:
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
        """Store a set with its columns; if any is invalid the whole set is skipped, and the reason returned.

        Args:
            writer: of the columns' store.
            id, x_ND, where: see `StoreWriter.offer`.
            columns: `(N, C)` each, by name.

        Raises:
            InputError: an interrupted writer skipped this set and stored later ones without their columns, whose rows
                would no longer be those of the store.
        """
        if why := self._refuse(columns, len(x_ND)):
            writer.note(Skipped(where=where, why=why))
            return why
        for column in self._writers.values():
            new = id not in writer and id not in column
            if new and column.count != writer.count and writer._refuse(id, x_ND) is None:
                raise InputError(
                    f"{writer.folder}: {where} was skipped before an interruption and is valid now, but later sets are "
                    "stored without their columns; remove this folder to start over"
                )
        if (why := writer.offer(id, x_ND, where=where)) is None:
            for name, column in self._writers.items():  # without columns that an earlier writer finished
                column.offer(id, columns[name], where=where)
        return why

    def _refuse(self, columns: Mapping[str, np.ndarray], size: int) -> str | None:
        """Return why the columns of a set cannot be stored, the same text for all such sets."""
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
    """Return the source of a store with columns."""
    return source | {COLUMNS: dict(widths)} if widths else source


def _complete(at: Path | Url, source: dict[str, Any], *, extends: bool) -> bool:
    """Whether a column of this source is complete, for example from an interrupted writer.

    With `extends`, a complete column of another source counts as incomplete, because it is to be extended.

    Raises:
        InputError: a complete column of another source, without `extends`.
    """
    if not exists(at / MANIFEST):
        return False
    found = FeatureStore.open(at)
    if extends and found.manifest.source != source:
        return False
    if found.manifest.source != source:
        raise InputError(f"{at}: holds a column of another store; remove this folder to recreate it")
    return True
