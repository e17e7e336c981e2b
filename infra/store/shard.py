"""Shard of a feature store: an Arrow IPC file with one record batch of ids, sets (lists of vectors), and checksums.

The columns are `id: string`, `features: large_list<fixed_size_list<half|float, D>>` and `check: uint64`. The file is
uncompressed, so its memory-mapped buffers can be used as numpy arrays: all vectors `(V, D)`, contiguous, and the
offsets of the sets.

All bytes are verified before use. A set's checksum is the XXH3 of its vectors, verified when the set is first read, so
that random access reads no additional bytes. The rest of the file, thousands of times smaller, has one checksum in the
manifest, verified before Arrow parses it. XXH3 runs at memory speed, five times as fast as zlib's CRC-32: copying a
batch of 128 x 36 x 2048 halves takes 2 ms, verifying the copy 0.3 ms, once.

By default a page that is not in memory is detected on access; the system then waits for the disk page by page and reads
ahead, megabytes on some machines, which evicts needed pages if the data is larger than memory. So read-ahead is off,
and all parts of a batch are prefetched, so that the disk reads them in parallel.
"""

from __future__ import annotations

import mmap
import os
import resource
import shlex
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from polypool.infra.errors import InputError
from polypool.infra.files import atomic, sha256
from polypool.infra.store.manifest import Shard

TRIAL_EVERY = 16
"""Number of prefetched batches between two without, which test whether prefetching is necessary."""
_PIECE = 128 << 10  # bytes; the usual read-ahead, beyond which a system may ignore advice
_OTHER_FILES = 512
FILES_EACH = 2
"""Open files per mapped file: Python's mapping duplicates the descriptor."""


class MappedFile:
    """A memory-mapped file, read-only; numpy and Arrow make views of its `buffer`.

    Systems and file systems without support for advice differ only in speed.

    Args:
        path: of the file, which must not be empty.

    Raises:
        OSError, ValueError: it cannot be opened or mapped.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.buffer = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self._descriptor = descriptor
        self.advise("MADV_RANDOM")

    def __len__(self) -> int:
        return len(self.buffer)

    def fetch(self, start: int, end: int) -> None:
        """Prefetch a range of bytes without waiting.

        Uses advice on the file instead of the mapping, because Python's `mmap.madvise` blocks all threads while the
        disk's queue is full.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        end = min(end, len(self))
        for at in range(start - start % mmap.PAGESIZE, end, _PIECE):
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, at, min(_PIECE, end - at), os.POSIX_FADV_WILLNEED)

    def advise(self, name: str) -> None:
        """Advise the system of the access pattern of the whole file, such as `MADV_SEQUENTIAL`, if supported."""
        if hasattr(mmap, name):
            with suppress(OSError):
                self.buffer.madvise(getattr(mmap, name))


class Prefetcher:
    """Prefetches the parts of a batch while the disk is slower than memory.

    Each prefetch is a system call, a third of a batch's time if all data is in memory. So from time to time a batch
    starts without prefetching, and the rest of it is prefetched only if the thread had to wait for the disk.

    Args:
        fetch: prefetches one part.
    """

    def __init__(self, fetch: Callable[[Any], None]) -> None:
        self._fetch, self._left = fetch, TRIAL_EVERY

    def __call__(self, places: Sequence[Any]) -> Iterator[Any]:
        """Yield the parts of a batch; read each before requesting the next one."""
        before, fetched = disk_waits(), 0
        if self._left > 0 or before is None:
            self._left -= 1
            fetched = self._fetch_all(places)
        for number, place in enumerate(places):
            power_of_2 = number & (number - 1) == 0
            if fetched == 0 and power_of_2 and disk_waits() != before:
                self._left = TRIAL_EVERY
                fetched = self._fetch_all(places[number:])
            yield place

    def _fetch_all(self, places: Sequence[Any]) -> int:
        for place in places:
            self._fetch(place)
        return len(places)


def disk_waits() -> int | None:
    """Return the number of major page faults of this thread; None if the system does not count them."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def allow_files(count: int) -> None:
    """Raise this process's limit of open files, if necessary and possible, to map `count` files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_EACH * count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may have a separate limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


DTYPES = {"float16": pa.float16(), "float32": pa.float32()}
check_of: Callable[[Any], int] = xxhash.xxh3_64_intdigest
"""Checksum of a contiguous array: 64 bits against accidental changes, not against intent."""
_IDS_AT_ONCE = 1 << 12


def schema(*, dim: int, dtype: str) -> pa.Schema:
    """Return the Arrow schema of every shard of a store with vectors of width `dim`."""
    features = pa.large_list(pa.list_(DTYPES[dtype], dim))
    return pa.schema([("id", pa.string()), ("features", features), ("check", pa.uint64())])


@dataclass(frozen=True, kw_only=True)
class MappedShard:
    """Views of a memory-mapped shard with S sets and V vectors; nothing is copied.

    Args:
        path: the file.
        file: its bytes.
        vectors_at: byte offset of the vectors.
        ids: `(S,)` Arrow strings.
        offsets: `(S + 1,)` int64; set i is `vectors_VD[offsets[i]:offsets[i + 1]]`.
        vectors_VD: `(V, D)`, read-only and unverified; `shard[i]` is a verified set.
        checks: `(S,)` uint64 checksums.
        trusted: whether each set was verified; any thread may set it.
    """

    path: Path
    file: MappedFile
    vectors_at: int
    ids: pa.StringArray
    offsets: np.ndarray
    vectors_VD: np.ndarray
    checks: np.ndarray
    trusted: bytearray

    def fetch(self, row: int) -> None:
        """Prefetch a set without waiting."""
        width = self.vectors_VD.strides[0]
        first, last = self.offsets[row : row + 2].tolist()
        self.file.fetch(self.vectors_at + first * width, self.vectors_at + last * width)

    def view(self, row: int) -> np.ndarray:
        """Return a set `(N, D)` unverified; the caller must call `check`."""
        return self.vectors_VD[self.offsets[row] : self.offsets[row + 1]]

    def check(self, row: int, x_ND: np.ndarray) -> None:
        """Verify a set, or a copy of it, against its checksum, once.

        Raises:
            InputError: the checksum differs.
        """
        if self.trusted[row]:
            return
        if check_of(x_ND) != self.checks[row]:
            raise _damaged(
                self.path,
                f"the vectors of {self.ids[row].as_py()!r} (set {row} in it) changed since they were written "
                f"(`polypool ingest verify --store {shlex.quote(str(self.path.parent))}` lists all that is damaged)",
            )
        self.trusted[row] = True

    def names(self) -> Iterator[str]:
        """Yield the ids in order, with only a few thousand Python objects at a time."""
        for start in range(0, len(self.ids), _IDS_AT_ONCE):
            yield from self.ids.slice(start, _IDS_AT_ONCE).to_pylist()

    def __getitem__(self, row: int) -> np.ndarray:
        """Prefetch, verify and return a set `(N, D)`."""
        self.fetch(row)
        x_ND = self.view(row)
        self.check(row, x_ND)
        return x_ND

    def changed(self) -> list[int]:
        """Read all sets; return those with a wrong checksum."""
        ends = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), self.checks.tolist(), strict=True)
        return [
            row
            for row, (start, end, check) in enumerate(ends)
            if check_of(self.vectors_VD[start:end]) != check
        ]


def write_shard(
    path: Path, *, ids: pa.StringArray, offsets: np.ndarray, vectors_VD: np.ndarray, checks: np.ndarray
) -> None:
    """Write a shard atomically from the arrays of a `MappedShard`, without copies.

    Raises:
        InputError: the disk is full.
    """
    form = schema(dim=vectors_VD.shape[1], dtype=vectors_VD.dtype.name)
    list_type = form.field("features").type
    numbers = pa.Array.from_buffers(
        DTYPES[vectors_VD.dtype.name], vectors_VD.size, [None, pa.py_buffer(vectors_VD)]
    )
    vectors = pa.FixedSizeListArray.from_arrays(numbers, type=list_type.value_type)
    sets = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), vectors, type=list_type)
    columns = [ids, sets, pa.array(checks, pa.uint64())]
    batch = pa.record_batch(columns, schema=form)
    with atomic(path, needs=batch.nbytes) as file, pa.ipc.new_file(file, form) as writer:
        writer.write_batch(batch)


def map_shard(path: Path, shard: Shard, *, dim: int, dtype: str) -> MappedShard:
    """Memory-map a shard of the manifest; all bytes except the vectors are verified.

    Raises:
        InputError: the file is missing, truncated or changed, or is not such an Arrow file.
    """
    file = _mapped(path)
    if _check_around(file, shard, dim=dim, dtype=dtype) != shard.check:
        raise _damaged(
            path, "its ids, offsets or checks changed since they were written, or it is of another store"
        )
    return _parsed(path, file, dim=dim, dtype=dtype)


def open_written(path: Path, *, dim: int, dtype: str) -> tuple[Shard, MappedShard]:
    """Return the manifest entry of a newly written shard, and the shard."""
    file = _mapped(path)
    mapped = _parsed(path, file, dim=dim, dtype=dtype)
    shard = Shard(
        file=path.name,
        sets=len(mapped.ids),
        vectors=len(mapped.vectors_VD),
        bytes=len(file),
        sha256=sha256(path),
        vectors_at=mapped.vectors_at,
        check="",
    )
    return replace(shard, check=_check_around(file, shard, dim=dim, dtype=dtype)), mapped


def _mapped(path: Path) -> MappedFile:
    try:
        return MappedFile(path)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise _damaged(path, f"cannot be read: {error}") from error


def _check_around(file: MappedFile, shard: Shard, *, dim: int, dtype: str) -> str:
    """Return the XXH3 of all bytes except the vectors."""
    start = shard.vectors_at
    end = start + shard.vectors * dim * np.dtype(dtype).itemsize
    file.fetch(0, start)
    file.fetch(end, len(file))
    view = memoryview(file.buffer)
    check = xxhash.xxh3_64(view[:start])
    check.update(view[end:])
    return check.hexdigest()


def _parsed(path: Path, file: MappedFile, *, dim: int, dtype: str) -> MappedShard:
    """Parse a file with Arrow and validate its structure."""
    data, form = pa.py_buffer(file.buffer), schema(dim=dim, dtype=dtype)
    try:
        with pa.ipc.open_file(data) as reader:
            fits = reader.num_record_batches == 1 and reader.schema == form
            batch = reader.get_batch(0) if fits else None
        if batch is not None:
            batch.validate(
                full=True
            )  # buffer lengths are valid, offsets are increasing and within them, ids are UTF-8
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, f"cannot be read as a shard of a feature store: {error}") from error
    if batch is None:
        raise _damaged(path, f"expected one batch of ids and sets of {dtype} vectors of width {dim}")
    sets = batch.column("features")
    values, offsets = sets.values.values, sets.offsets.to_numpy(zero_copy_only=True)
    vectors_VD = values.to_numpy(zero_copy_only=True).reshape(-1, dim)
    return MappedShard(
        path=path,
        file=file,
        vectors_at=vectors_VD.__array_interface__["data"][0] - data.address,
        ids=batch.column("id"),
        offsets=offsets,
        vectors_VD=vectors_VD,
        checks=batch.column("check").to_numpy(zero_copy_only=True),
        trusted=bytearray(len(batch)),
    )


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}; copy this file again, or recreate the store")
