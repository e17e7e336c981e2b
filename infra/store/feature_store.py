"""Feature store reader: memory-mapped Arrow files as numpy views, and padded batches as tensors.

Opening reads only the manifest. A shard is mapped on first use; its vectors and offsets are views of the file, so a
store may be larger than memory, and reading a row costs one copy of its bytes. Damaged sets are never returned: see
`polypool.infra.store.shard`.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polypool.infra.errors import InputError, unknown
from polypool.infra.process.progress import Progress
from polypool.infra.storage import Url, fetch, place
from polypool.infra.store.manifest import COLUMNS, Manifest, Shard
from polypool.infra.store.shard import MappedShard, Prefetcher, allow_files, map_shard

if TYPE_CHECKING:
    from torch import Tensor


def text_id(text: str) -> str:
    """Return the id of a text in a store of texts: its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


def column_source(name: str, of: dict[str, Any]) -> dict[str, Any]:
    """Return the source of a column, given its store's source."""
    return {"column": name, "of": of}


def column_place(folder: Path | Url, name: str) -> Path | Url:
    """Return the folder or URL of a store's column; see `polypool.infra.store.writer`."""
    return folder / COLUMNS / name


class FeatureStore:
    """A complete store; open it with `FeatureStore.open`. Pickling stores only the path.

    Args:
        folder: the store's folder or URL.
        files: the folder with its shards, or with copies of them.
        manifest: of the store.
    """

    def __init__(self, folder: Path | Url, files: Path, manifest: Manifest) -> None:
        self.folder, self._files = folder, files
        self.manifest = manifest
        # first row of each shard
        self._first = [0, *accumulate(shard.sets for shard in manifest.shards)]
        self._mapped: list[MappedShard | None] = [None] * len(manifest.shards)
        self._mapping = threading.Lock()
        self._prefetched = Prefetcher(lambda place: place[0].fetch(place[1]))

    @classmethod
    def open(cls, folder: str | Path | Url) -> FeatureStore:
        """Open the store at a folder or URL; a URL is copied to this machine once.

        Raises:
            InputError: a missing or incomplete store, another version, or a missing or truncated file.
        """
        folder, manifest = place(folder), Manifest.read(folder)
        if isinstance(folder, Path):
            folder = files = folder.absolute()
        else:
            files = fetch(folder, {shard.file: shard.sha256 for shard in manifest.shards})
        for shard in manifest.shards:
            path = files / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != shard.bytes:
                state = "is missing" if size is None else f"has {size:,} bytes, not {shard.bytes:,}"
                raise InputError(f"{path}: {state}; copy the store again, or recreate it")
        allow_files(len(manifest.shards))
        return cls(folder, files, manifest)

    def __reduce__(self) -> tuple:
        return FeatureStore.open, (self.folder,)

    @property
    def dim(self) -> int:
        """Width D of the vectors."""
        return self.manifest.dim

    @property
    def dtype(self) -> str:
        """`float16` or `float32`."""
        return self.manifest.dtype

    @property
    def digest(self) -> str:
        """SHA-256 of the content (ids and features), independent of the source."""
        return self.manifest.digest

    @property
    def origin(self) -> str:
        """SHA-256 of the settings of `extract` and of the sizes; empty for other stores."""
        return self.manifest.origin

    @property
    def columns(self) -> Mapping[str, int]:
        """Widths of the further columns, such as boxes, by name."""
        return self.manifest.source.get(COLUMNS, {})

    def column(self, name: str) -> FeatureStore:
        """Return a column as a store, with a set `(N, width)` for each set of this store, in the same rows.

        Raises:
            InputError: the column is unknown, missing, damaged, or has other sets.
        """
        if name not in self.columns:
            raise unknown(f"column of {self.folder}:", name, self.columns)
        found = FeatureStore.open(column_place(self.folder, name))
        ours, theirs = self.manifest, found.manifest
        expected = (ours.sets, ours.vectors, self.columns[name], column_source(name, ours.source))
        if (theirs.sets, theirs.vectors, theirs.dim, theirs.source) != expected:
            raise InputError(
                f"{found.folder}: is no column of {self.folder}; copy the whole store again, or recreate it"
            )
        return found

    @property
    def ids(self) -> pa.ChunkedArray:
        """The id of every row, as Arrow strings in the mapped files."""
        return pa.chunked_array([self._shard(i).ids for i in range(len(self._mapped))], pa.string())

    def __len__(self) -> int:
        return self._first[-1]

    def _shard(self, index: int) -> MappedShard:
        mapped = self._mapped[index]
        if mapped is None:
            with self._mapping:  # so that no other thread maps it meanwhile
                mapped = self._mapped[index]
                if mapped is None:
                    mapped = self._mapped[index] = self._map(self.manifest.shards[index])
        return mapped

    def _map(self, shard: Shard) -> MappedShard:
        return map_shard(self._files / shard.file, shard, dim=self.dim, dtype=self.dtype)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Return the row of each id, int64. Call it once for all ids, not per batch.

        Raises:
            InputError: ids without features; the message gives their number and the first ones.
        """
        rows = self.find(ids)
        if missing := np.flatnonzero(rows < 0).tolist():
            few = ", ".join(ids[number] for number in missing[:5])
            raise InputError(
                f"{self.folder}: {len(missing):,} of {len(ids):,} ids have no features; the first: {few}. "
                f"Ingest or extract their features too, or leave the ids out"
            )
        return rows

    def find(self, ids: Sequence[str]) -> np.ndarray:
        """Return the row of each id, int64, -1 for ids without features."""
        rows = pc.index_in(pa.array(ids, pa.string()), value_set=self.ids)
        return rows.fill_null(-1).to_numpy().astype(np.int64)

    def __getitem__(self, row: int) -> np.ndarray:
        """Return the set in `row` as a read-only view `(N, D)` of the file.

        Raises:
            InputError: its checksum differs; verified on first access.
        """
        shard, local = self.locate(row)
        return shard[local]

    def locate(self, row: int) -> tuple[MappedShard, int]:
        """Return a row's shard and its index in it."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a store with {len(self)} sets")
        index = bisect_right(self._first, row) - 1
        return self._shard(index), row - self._first[index]

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of vectors of each row, int64."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a store with {len(self)} sets")
        shards = np.searchsorted(self._first, rows, side="right") - 1
        sizes = np.empty(len(rows), np.int64)
        for index in np.unique(shards):
            here = shards == index
            local, offsets = rows[here] - self._first[index], self._shard(index).offsets
            sizes[here] = offsets[local + 1] - offsets[local]
        return sizes

    def padded(self, rows: np.ndarray, *, keep: list[np.ndarray] | None = None) -> tuple[Tensor, Tensor]:
        """Copy the sets in `rows` into one padded tensor.

        Args:
            rows: B rows, from `rows()`.
            keep: for each row the elements to keep, as indices or as a bool mask over the set; at least one element.

        Returns:
            x_BND in the store's dtype, zero in the padding, N the largest size; and mask_BN, True for real elements.

        Raises:
            InputError: a set's checksum differs; verified on first access.
        """
        import torch  # imported here, so that `ingest` and others that read no tensors start fast

        places = [self.locate(row) for row in np.asarray(rows).tolist()]
        sets = [shard.view(local) for shard, local in places]
        kept = sets if keep is None else [_indices(*each) for each in zip(keep, map(len, sets), strict=True)]
        sizes = np.array([*map(len, kept)], np.int64)
        width = int(sizes.max(initial=0))
        x_BND = np.empty((len(sets), width, self.dim), self.dtype)
        for i, (shard, local) in enumerate(self._prefetched(places)):
            x_ND, kept_ND = sets[i], x_BND[i, : sizes[i]]
            if keep is None:
                kept_ND[:] = x_ND
                shard.check(local, kept_ND)  # verify the copy, which is in the processor's cache
            else:
                shard.check(local, x_ND)
                np.take(x_ND, kept[i], axis=0, out=kept_ND, mode="clip")  # "raise" would copy twice
            x_BND[i, sizes[i] :] = 0
        return torch.from_numpy(x_BND), torch.from_numpy(np.arange(width) < sizes[:, None])

    def verify(self) -> None:
        """Read everything and verify hashes, counts, offsets, unique ids and finite values.

        Raises:
            InputError: names every damaged file and set.
        """
        damaged = []
        for shard in Progress(self.manifest.shards, desc="verify", unit="shard"):
            try:
                self._verify(shard)
            except InputError as error:
                damaged.append(str(error))
        if damaged:
            raise InputError("\n".join(damaged))
        unique = pc.count_distinct(self.ids).as_py()
        if unique != len(self):
            raise InputError(
                f"{self.folder}: {len(self):,} sets have only {unique:,} different ids; write it again"
            )
        for name in self.columns:
            self.column(name).verify()

    def _verify(self, shard: Shard, *, rows: int = 4096) -> None:
        path, mapped = self._files / shard.file, self._map(shard)
        mapped.file.advise("MADV_SEQUENTIAL")
        if changed := mapped.changed():
            few = ", ".join(mapped.ids.take(changed[:5]).to_pylist()) + (", ..." if len(changed) > 5 else "")
            raise InputError(
                f"{path}: {len(changed):,} of its {shard.sets:,} sets changed since they were written: {few}; copy "
                "this file again, or recreate the store"
            )
        if hashlib.sha256(mapped.file.buffer).hexdigest() != shard.sha256:
            raise InputError(
                f"{path}: its bytes changed since it was written (SHA-256 differs); write it again"
            )
        for start in range(0, shard.vectors, rows):
            if not np.isfinite(mapped.vectors_VD[start : start + rows]).all():
                raise InputError(f"{path}: NaN or infinite values from vector {start} on; write it again")


def _indices(keep: np.ndarray, size: int) -> np.ndarray:
    """Return the elements to keep as indices within the set."""
    keep = np.flatnonzero(keep) if np.asarray(keep).dtype == bool else np.asarray(keep)
    assert 0 <= min(keep, default=-1) <= max(keep) < size, f"{keep} of a set of {size}"
    return keep
