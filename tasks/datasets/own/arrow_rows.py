"""Rows of Arrow's batches as Python's values, and batches of Parquet files, whose few bytes may stand for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polypool.infra.errors import InputError
from polypool.infra.limits import LARGEST_ROW, LARGEST_SET, UNPACKS_TOO_FAR, unpacks_too_far

_ROWS = 8192  # that are decoded at a time, and that become Python's values
_BUFFER = 1 << 20  # bytes of each column of the file that are read at a time
_REFERENCE = 8  # bytes of a value at the least, once it is Python's
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
TEXT_FIELDS = ("answer", "caption", "text", "raw", "sentence")
"""The fields of an object that hold its text: VQA's answers on the hub are `{answer, answer_confidence, answer_id}`."""
_LIST = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def parquet_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a Parquet file, in which equal texts stay one text.

    Raises:
        InputError: a column holds neither text, numbers, lists of text nor of objects with a text, or has far more
            values than its file bytes.
    """
    with pq.ParquetFile(path) as file:
        for name in columns:
            _check_kind(file.schema_arrow.field(name).type, name=name, path=path)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        parts = [group.column(at) for group in groups for at in range(group.num_columns)]
    parts = [part for part in parts if part.path_in_schema.partition(".")[0] in columns]
    unpacked, packed = _REFERENCE * sum(part.num_values for part in parts), path.stat().st_size
    if unpacks_too_far(unpacked, packed=packed):
        raise InputError(f"{path}: {UNPACKS_TOO_FAR}")
    if largest := [part for part in parts if part.total_uncompressed_size > LARGEST_SET]:
        raise InputError(
            f"{path}: {largest[0].path_in_schema} has {largest[0].total_uncompressed_size:,} bytes in a row group, at "
            f"most {LARGEST_SET:,} are read; write it in smaller row groups"
        )
    texts = {part.path_in_schema for part in parts if part.physical_type == "BYTE_ARRAY"}
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER, read_dictionary=sorted(texts)) as file:
        for batch in file.iter_batches(_ROWS, columns=[*columns], use_threads=False):
            unpacked += sum(int(_bytes(column).sum()) for column in batch.columns)
            if unpacks_too_far(unpacked, packed=packed):
                raise InputError(f"{path}: {UNPACKS_TOO_FAR}")
            yield batch


def _check_kind(kind: pa.DataType, *, name: str, path: Path) -> None:
    inner = kind
    while True:
        if any(check(inner) for check in (*_LIST, pa.types.is_dictionary)):
            inner = inner.value_type
        elif pa.types.is_struct(inner) and (inside := {*TEXT_FIELDS} & {*inner.names}):
            inner = inner.field(min(inside, key=TEXT_FIELDS.index)).type
        else:
            break
    if not any(check(inner) for check in _TEXT) and (pa.types.is_nested(kind) or is_binary(kind)):
        raise InputError(
            f"{path}: the column {name!r} holds {kind}, expected strings, numbers, or lists of strings or of objects "
            f"with a field {', '.join(TEXT_FIELDS)}"
        )


def is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def holds_pictures(kind: pa.DataType) -> bool:
    """Whether a column holds files themselves, as bytes or as the hub's `{bytes, path}`."""
    return is_binary(kind) or (
        pa.types.is_struct(kind) and "bytes" in kind.names and is_binary(kind.field("bytes").type)
    )


def plain_rows(batch: pa.RecordBatch, *, where: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, of which a few megabytes are Python's values at a time.

    Raises:
        InputError: a row has too many bytes.
    """
    if not len(batch):
        return
    sizes = np.sum([_bytes(column) for column in batch.columns], axis=0)
    if (largest := int(sizes.max())) > LARGEST_ROW:
        raise InputError(f"{where}: a row of {largest:,} bytes, at most {LARGEST_ROW:,} are read")
    part = np.cumsum(sizes + LARGEST_ROW // _ROWS) // LARGEST_ROW
    starts = np.flatnonzero(np.diff(part, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        yield from batch.slice(start, end - start).to_pylist()


def _bytes(column: pa.Array) -> np.ndarray:
    """Return the bytes of the text in each row, `(rows,)`."""
    if any(check(column.type) for check in _LIST):
        inside = np.concatenate([[0], np.cumsum(_bytes(column.flatten()))])
        ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy())
        return np.diff(inside[np.concatenate([[0], ends])])
    if pa.types.is_struct(column.type):
        return sum(map(_bytes, column.flatten()), start=np.zeros(len(column), np.int64))
    if pa.types.is_dictionary(column.type):
        return pc.fill_null(pc.take(pc.binary_length(column.dictionary), column.indices), 0).to_numpy()
    if any(check(column.type) for check in _TEXT):
        return pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return np.zeros(len(column), np.int64)
