"""Archives of finished runs: the data that `compare` reads, in one Parquet file.

A row is a run with its settings, scores, costs and per-query results, so that tables can be extended on machines
without the other runs. Checkpoints and curves are left out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.files import atomic, existing, make_folder
from polypool.infra.process.progress import Progress
from polypool.infra.tracking import HOME, Artifacts, RunRecord
from polypool.pipelines.comparison.grouping import protocols_shown
from polypool.pipelines.comparison.queries import stored_arrays
from polypool.tasks.scoring.records import metrics_file, query_files

WHAT = "an archive that `polypool runs archive` wrote"
ARCHIVE = "archive"
"""Tag of a run that was read from an archive: the path of the file."""
_VALUES = {"tags": pa.string(), "params": pa.string(), "metrics": pa.float64(), "files": pa.large_binary()}
_TYPES = {"run_id": pa.string(), "name": pa.string(), "started": pa.float64(), "ended": pa.float64()} | {
    name: pa.map_(pa.string(), pa.field("value", of, nullable=False)) for name, of in _VALUES.items()
}
_SCHEMA = pa.schema([pa.field(name, of, nullable=False) for name, of in _TYPES.items()])
_RUN_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_FILE = re.compile(r"(metrics|per_query)/[^/\\\0]+\.(json|npz)")
# Bytes of files that are compressed together, so that the ids of queries are stored once for many runs.
_PAGE = 32 << 20


def refuse_ending(path: Path) -> None:
    """Raise InputError for a path of an archive that does not end in `.parquet`."""
    if path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: an archive of runs is written as .parquet, by the end of the name")


def write_archive(runs: Sequence[RunRecord], artifacts: Artifacts, path: Path) -> int:
    """Write the finished runs to an archive, and return their number.

    Args:
        runs: with scores of a test split.
        artifacts: their files.
        path: of the archive; an existing file is replaced.

    Raises:
        InputError: the store does not answer, or the file cannot be written.
    """
    runs = [run for run in runs if run.status == "FINISHED"]
    rows = (_row(run, artifacts) for run in Progress(runs, desc="archive", unit="run", leave=False))
    options = {
        "compression": "zstd",
        "compression_level": 19,
        "use_dictionary": False,
        "data_page_size": _PAGE,
    }
    make_folder(path.parent)
    with (
        atomic(path) as file,
        pq.ParquetWriter(file, _SCHEMA, write_page_checksum=True, **options) as archive,
    ):
        for group in _groups(rows):
            archive.write_table(pa.Table.from_pylist(group, schema=_SCHEMA))
    return len(runs)


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of rows that are compressed together."""
    group, size = [], 0
    for row in rows:
        group.append(row)
        size += sum(map(len, row["files"].values()))
        if size >= _PAGE:
            yield group
            group, size = [], 0
    yield group


def _row(run: RunRecord, artifacts: Artifacts) -> dict[str, Any]:
    files = {}
    for protocol in sorted(protocols_shown(run)):
        for name in (metrics_file(protocol), *query_files(protocol)):
            with suppress(AbsentError):  # some metrics have no per-query results
                path = artifacts.path(run, name)
                files[name] = path.read_bytes()
                if (
                    path.suffix == ".npz"
                ):  # uncompressed, so that arrays that all runs share compress together
                    arrays: dict[str, Any] = stored_arrays(path)
                    np.savez(unpacked := io.BytesIO(), **arrays)
                    files[name] = unpacked.getvalue()
    tags = {
        name: value
        for name, value in run.tags.items()
        if not name.startswith("mlflow.") and name not in (HOME, ARCHIVE)
    }
    row = {name: getattr(run, name) for name in _SCHEMA.names if name != "files"}
    return row | {"tags": tags, "params": run.settings, "files": files}


def read_archive(path: Path, folder: Path) -> list[RunRecord]:
    """Read the runs of an archive.

    Args:
        path: of the archive.
        folder: existing one, for the files of the runs.

    Raises:
        InputError: the file is missing, damaged or no archive.
    """
    refuse_ending(path)
    runs = []
    try:
        with pq.ParquetFile(existing(path, what=WHAT), page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(_SCHEMA):
                raise InputError(f"{path}: its columns are not those of {WHAT}")
            for batch in file.iter_batches(batch_size=8):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    runs.append(_unpacked(row, folder, archive=path))
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:  # KeyError: a duplicate key
        raise InputError(f"{path}: cannot be read as Parquet: {error}; expected {WHAT}") from None
    return runs


def _unpacked(row: dict[str, Any], folder: Path, *, archive: Path) -> RunRecord:
    """Return the run in a row of an archive, and write its files to a new folder."""
    files = row.pop("files")
    row["tags"] |= {ARCHIVE: str(archive)}
    record = RunRecord(**row, status="FINISHED")
    if not _RUN_ID.fullmatch(record.run_id):
        raise InputError(f"{archive}: {record.run_id!r} is no id of a run")
    own = make_folder(folder / record.run_id)
    for name, data in files.items():
        if not _FILE.fullmatch(name):
            raise InputError(f"{archive}: {name!r} is no file of an evaluation's results")
        make_folder((own / name).parent)
        (own / name).write_bytes(data)
    return replace(record, artifacts=own.absolute().as_uri())
