"""One Arrow IPC file of a feature store: a record batch of ids and of sets, each set a list of vectors.

The columns are `id: string` and `features: large_list<fixed_size_list<half|float, D>>`. The file is
uncompressed, so its memory-mapped buffers are numpy arrays as they are: all vectors `(V, D)` in one piece,
and the offsets at which the sets begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from infra.errors import InputError
from infra.files import atomic

DTYPES = {"float16": pa.float16(), "float32": pa.float32()}


def schema(*, dim: int, dtype: str) -> pa.Schema:
    """Return the Arrow schema of every shard of a store with vectors of width `dim`."""
    features = pa.large_list(pa.list_(DTYPES[dtype], dim))
    return pa.schema([pa.field("id", pa.string()), pa.field("features", features)])


@dataclass(frozen=True, kw_only=True)
class MappedShard:
    """Views of a memory-mapped shard with S sets and V vectors; nothing is copied.

    Args:
        ids: `(S,)` Arrow strings.
        offsets: `(S + 1,)` int64; set i is `vectors_VD[offsets[i]:offsets[i + 1]]`.
        vectors_VD: `(V, D)`, read-only.
    """

    ids: pa.StringArray
    offsets: np.ndarray
    vectors_VD: np.ndarray


def write_shard(path: Path, *, ids: list[str], offsets: np.ndarray, vectors_VD: np.ndarray) -> None:
    """Write a shard atomically, straight from the arrays.

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
    batch = pa.record_batch([pa.array(ids, pa.string()), sets], schema=form)
    with atomic(path, needs=batch.nbytes) as file, pa.ipc.new_file(file, form) as writer:
        writer.write_batch(batch)


def map_shard(path: Path, *, dim: int, dtype: str) -> MappedShard:
    """Memory-map a shard.

    Raises:
        InputError: it is missing, is not an Arrow file of one batch, or has another schema.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches, stored = reader.num_record_batches, reader.schema
        batch = reader.get_batch(0) if batches == 1 else None
        if batch is not None:
            batch.validate()  # the buffers are as long as the metadata says
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as a shard of a feature store: {error}") from error
    if batch is None or stored != schema(dim=dim, dtype=dtype):
        raise InputError(f"{path}: expected one batch of ids and sets of {dtype} vectors of width {dim}")
    sets = batch.column("features")
    numbers = sets.values.values.to_numpy(zero_copy_only=True)
    return MappedShard(
        ids=batch.column("id"),
        offsets=sets.offsets.to_numpy(zero_copy_only=True),
        vectors_VD=numbers.reshape(-1, dim),
    )
