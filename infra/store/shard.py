"""Shard of a feature store: an Arrow IPC file with one record batch of ids, sets (lists of vectors), and their checks.

The columns are `id: string`, `features: large_list<fixed_size_list<half|float, D>>` and `check: uint64`. The file is
uncompressed, so its memory-mapped buffers are numpy arrays as they are: all vectors `(V, D)` in one piece, and the
offsets at which the sets begin.

No byte is used unchecked. The check of a set is the XXH3 of its vectors, compared when the set is first read, so that
reading at random costs no more bytes. The rest of the file, thousands of times smaller, has one check in the manifest,
compared before Arrow parses it. XXH3 is as fast as memory, five times as fast as zlib's CRC-32: to copy a batch of
128 x 36 x 2048 halves takes 2 ms, to check the copy 0.3 ms, once.

By default the system notices only when a page is touched that it is not in memory. It then waits for the disk, page
after page, and reads ahead, on some machines megabytes, which where data is larger than memory evict what is needed. So
read-ahead is off, and what is about to be touched is fetched first: the disk then reads all parts of a batch at once.
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
"""Batches that are fetched ahead before one is read without, to see whether that is necessary."""
_PIECE = 128 << 10  # bytes; the usual read-ahead, beyond which a disk may ignore advice
_OTHER_FILES = 512
FILES_EACH = 2
"""Open files for each that is mapped: Python's mapping has a descriptor of its own."""


class MappedFile:
    """A file's bytes, read-only; `buffer` is what numpy and Arrow make views of.

    Systems and file systems that take no advice only differ in speed.

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
        """Have the system begin to read some bytes that are not in memory, without waiting for them.

        By the file and not the mapping, as Python's `mmap.madvise` blocks all other threads while the disk's queue is
        full.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        end = min(end, len(self))
        for at in range(start - start % mmap.PAGESIZE, end, _PIECE):
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, at, min(_PIECE, end - at), os.POSIX_FADV_WILLNEED)

    def advise(self, name: str) -> None:
        """Tell the system how the whole file is read, such as `MADV_SEQUENTIAL`, where it knows this advice."""
        if hasattr(mmap, name):
            with suppress(OSError):
                self.buffer.madvise(getattr(mmap, name))


class Ahead:
    """Fetches the parts of a batch before they are touched, while the disk is slower than memory.

    Each fetch is a system call, which where everything is in memory takes a third of a batch's time. So from time to
    time a batch is begun without, and the rest of it is fetched only if the thread had to wait for the disk.

    Args:
        fetch: has the system begin to read a part.
    """

    def __init__(self, fetch: Callable[[Any], None]) -> None:
        self._fetch, self._left = fetch, TRIAL_EVERY

    def __call__(self, places: Sequence[Any]) -> Iterator[Any]:
        """Yield the parts of a batch, each to be touched before the next one is requested."""
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
    """Return how often this thread waited for a page to be read from a disk; None where the system does not count."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def allow_files(count: int) -> None:
    """Raise this process's limit of open files, if possible and necessary, so that it can map `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_EACH * count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may have a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


DTYPES = {"float16": pa.float16(), "float32": pa.float32()}
check_of: Callable[[Any], int] = xxhash.xxh3_64_intdigest
"""The check of a contiguous array: 64 bits against accidental changes, not against intent."""
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
        vectors_at: the byte at which the vectors begin.
        ids: `(S,)` Arrow strings.
        offsets: `(S + 1,)` int64; set i is `vectors_VD[offsets[i]:offsets[i + 1]]`.
        vectors_VD: `(V, D)`, read-only and unchecked; `shard[i]` is a set that was checked.
        checks: `(S,)` uint64.
        trusted: for each set whether its check was compared; any thread may do that.
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
        """Have the system begin to read a set that is not in memory, without waiting for it."""
        width = self.vectors_VD.strides[0]
        first, last = self.offsets[row : row + 2].tolist()
        self.file.fetch(self.vectors_at + first * width, self.vectors_at + last * width)

    def view(self, row: int) -> np.ndarray:
        """Return a set `(N, D)` unchecked; the caller calls `check`."""
        return self.vectors_VD[self.offsets[row] : self.offsets[row + 1]]

    def check(self, row: int, x_ND: np.ndarray) -> None:
        """Compare a set, or a copy of it, with its check, once.

        Raises:
            InputError: its bytes changed since they were written.
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
        """Yield the ids in order; only a few thousand are Python objects at a time."""
        for start in range(0, len(self.ids), _IDS_AT_ONCE):
            yield from self.ids.slice(start, _IDS_AT_ONCE).to_pylist()

    def __getitem__(self, row: int) -> np.ndarray:
        """Fetch a set, check it, and return it `(N, D)`."""
        self.fetch(row)
        x_ND = self.view(row)
        self.check(row, x_ND)
        return x_ND

    def changed(self) -> list[int]:
        """Read all sets; return those whose bytes changed since they were written."""
        ends = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), self.checks.tolist(), strict=True)
        return [
            row
            for row, (start, end, check) in enumerate(ends)
            if check_of(self.vectors_VD[start:end]) != check
        ]


Place = tuple[MappedShard, int]
"""A shard, and the number of a set in it."""


def write_shard(
    path: Path, *, ids: pa.StringArray, offsets: np.ndarray, vectors_VD: np.ndarray, checks: np.ndarray
) -> None:
    """Write a shard atomically, straight from the arrays, which are those of a `MappedShard`.

    Raises:
        InputError: no space is left.
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
    """Memory-map a shard that the manifest describes; all of it is checked except the vectors.

    Raises:
        InputError: it is missing or cut short, changed since it was written, or is no such Arrow file.
    """
    file = _mapped(path)
    if len(file) != shard.bytes:
        raise _damaged(path, f"has {len(file):,} bytes, not {shard.bytes:,}")
    if _check_around(file, shard, dim=dim, dtype=dtype) != shard.check:
        raise _damaged(
            path, "its ids, offsets or checks changed since they were written, or it is of another store"
        )
    mapped = _parsed(path, file, dim=dim, dtype=dtype)
    if (found := (len(mapped.ids), len(mapped.vectors_VD))) != (shard.sets, shard.vectors):
        raise _damaged(path, f"{found} sets and vectors, the manifest says {(shard.sets, shard.vectors)}")
    return mapped


def written(path: Path, *, dim: int, dtype: str) -> tuple[Shard, MappedShard]:
    """Return the manifest's entry of a shard that was just written, and the shard."""
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
    """Return the XXH3 of all bytes except the vectors'."""
    start = shard.vectors_at
    end = start + shard.vectors * dim * np.dtype(dtype).itemsize
    file.fetch(0, start)
    file.fetch(end, len(file))
    view = memoryview(file.buffer)
    check = xxhash.xxh3_64(view[:start])
    check.update(view[end:])
    return check.hexdigest()


def _parsed(path: Path, file: MappedFile, *, dim: int, dtype: str) -> MappedShard:
    """Parse a file with Arrow, and check its structure."""
    data, form = pa.py_buffer(file.buffer), schema(dim=dim, dtype=dtype)
    try:
        with pa.ipc.open_file(data) as reader:
            fits = reader.num_record_batches == 1 and reader.schema == form
            batch = reader.get_batch(0) if fits else None
        if batch is not None:
            batch.validate(full=True)  # buffers are as long as said, offsets rise within them, ids are UTF-8
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
    return InputError(f"{path}: {why}; copy this file again, or write the store anew")
