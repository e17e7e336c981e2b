"""Sets of features in other formats, each read in its best way: LMDB, WebDataset and Lance."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.features.formats import Batches, Format, ends, loop, padding
from benchmarks.random_data import feature_sets

_WITHIN = 1000  # sets among which WebDataset shuffles
_AT_ONCE = 128  # sets that Lance is given to write


def _write_lmdb(folder: Path, size_S: np.ndarray, dim: int) -> None:
    import lmdb

    room = 2 * int(size_S.sum()) * 2 * dim + (64 << 20)
    with lmdb.open(str(folder), map_size=room) as environment, environment.begin(write=True) as writing:
        for row, x_ND in enumerate(feature_sets(size_S, dim=dim)):
            writing.put(struct.pack(">q", row), x_ND.tobytes(), append=True)


def _lmdb(folder: Path, size_S: np.ndarray, dim: int, row_KB: Sequence[np.ndarray]) -> Batches:
    import lmdb

    with (
        lmdb.open(str(folder), readonly=True, lock=False, readahead=False) as environment,
        environment.begin(buffers=True) as reading,
    ):

        def fill(x_ND: np.ndarray, row: int) -> None:
            x_ND[:] = np.frombuffer(reading.get(struct.pack(">q", row)), np.float16).reshape(x_ND.shape)

        yield from map(padding(fill, size_S, dim), row_KB)


LMDB = Format(
    name="LMDB",
    how="one get a set, without copies and without read-ahead",
    write=_write_lmdb,
    batches=_lmdb,
    package="lmdb",
)


def _write_webdataset(folder: Path, size_S: np.ndarray, dim: int) -> None:
    import webdataset

    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxsize=256 << 20, verbose=0) as writer:
        for row, x_ND in enumerate(feature_sets(size_S, dim=dim)):
            writer.write({"__key__": f"{row:08d}", "bin": x_ND.tobytes()})


def _webdataset(folder: Path, size_S: np.ndarray, dim: int, row_KB: Sequence[np.ndarray]) -> Batches:
    import webdataset

    files = sorted(map(str, folder.glob("*.tar")))
    samples = iter(webdataset.WebDataset(files, shardshuffle=False).shuffle(_WITHIN))
    for row_B in row_KB:
        sets = {int(one["__key__"]): one["bin"] for one in itertools.islice(samples, len(row_B))}

        def fill(x_ND: np.ndarray, row: int, sets: dict[int, bytes] = sets) -> None:
            x_ND[:] = np.frombuffer(sets[row], np.float16).reshape(x_ND.shape)

        yield padding(fill, size_S, dim)(np.array(list(sets)))


WEBDATASET = Format(
    name="WebDataset",
    how=f"tar files in order, shuffled within {_WITHIN:,} sets: not the order that was asked for",
    write=_write_webdataset,
    batches=_webdataset,
    package="webdataset",
)


def _write_lance(folder: Path, size_S: np.ndarray, dim: int) -> None:
    import lance

    form = pa.schema([("features", pa.large_list(pa.list_(pa.float16(), dim)))])

    def batches() -> Iterator[pa.RecordBatch]:
        sets_left = feature_sets(size_S, dim=dim)
        while sets := list(itertools.islice(sets_left, _AT_ONCE)):
            numbers = pa.array(np.concatenate(sets).ravel(), pa.float16())
            vectors = pa.FixedSizeListArray.from_arrays(numbers, dim)
            end_S1 = pa.array(ends(np.array([len(x_ND) for x_ND in sets])), pa.int64())
            yield pa.record_batch([pa.LargeListArray.from_arrays(end_S1, vectors)], schema=form)

    lance.write_dataset(pa.RecordBatchReader.from_batches(form, batches()), str(folder), mode="overwrite")


def _lance(folder: Path, size_S: np.ndarray, dim: int, row_KB: Sequence[np.ndarray]) -> Batches:
    import lance

    table = lance.dataset(str(folder))
    for row_B in row_KB:
        column = table.take(row_B.tolist(), columns=["features"])["features"].combine_chunks()
        vectors_VD = column.flatten().flatten().to_numpy().reshape(-1, dim)
        yield loop(vectors_VD, ends(size_S[row_B]))(np.arange(len(row_B)))


LANCE = Format(name="Lance", how="one take a batch", write=_write_lance, batches=_lance, package="lance")
