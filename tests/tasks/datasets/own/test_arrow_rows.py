"""Files of few bytes that stand for many, and rows of all forms in their values."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polypool.infra.errors import InputError
from polypool.tasks.datasets.own.arrow_rows import parquet_batches, plain_rows
from polypool.tasks.datasets.own.table import TableFile

MODULE = "polypool.tasks.datasets.own.arrow_rows"


def repeated(text: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [text])


def written(folder: Path, column: pa.Array) -> Path:
    pq.write_table(pa.table({"caption": column}), folder / "a.parquet", compression="zstd")
    return folder / "a.parquet"


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (repeated("a dog", 10_000_000), "unpacks to over 100 times"),  # values
        (repeated("word " * 100_000, 200), "unpacks to over 100 times"),  # bytes of them
        (pa.array([["a dog"] * 9_000_000], pa.list_(pa.string())), "unpacks to over 100 times"),
        (repeated("x" * (17 << 20), 1), "a row of 17,825,792 bytes, at most 16,777,216 are read"),
        (pa.array([[b"a"]]), "holds list<element: binary>, expected strings"),
        (pa.array([{"en": "a dog"}]), "holds struct<en: string>, expected strings"),
    ],
)
def test_a_parquet_file_that_stands_for_far_more_is_refused(column, why, tmp_path):
    path = written(tmp_path, column)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError) as caught:
        for _ in TableFile.open(path).rows(["caption"]):
            pass
    assert why in str(caught.value)


def test_a_row_group_of_a_column_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.LARGEST_SET", 1000)
    path = written(tmp_path, pa.array([f"a dog, number {n}" for n in range(300)]))
    with pytest.raises(InputError, match=r"caption has .* bytes in a row group, at most 1,000 are read"):
        next(parquet_batches(path, ["caption"]))


def test_values_come_as_they_are_however_they_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.LARGEST_ROW", 40)
    monkeypatch.setattr(f"{MODULE}._ROWS", 4)
    rows = [
        {"a": f"text {n}" if n % 3 else None, "b": [["x" * n], None, [], [None, "y"]][n % 4], "c": n}
        for n in range(20)
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    assert [*plain_rows(batch, where=tmp_path)] == rows
    encoded = batch.set_column(0, "a", batch["a"].dictionary_encode())
    assert [*plain_rows(encoded.slice(3), where=tmp_path)] == rows[3:]
    assert [*plain_rows(batch.slice(0, 0), where=tmp_path)] == []
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "b.parquet")
    assert [*TableFile.open(tmp_path / "b.parquet").rows(["a", "b", "c"])] == rows
