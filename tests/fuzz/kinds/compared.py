"""Files of a comparison, read back for the tables of documents, and archives of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from records import blocks_of, three_tasks

from fuzz.cases import Kind, expect
from polypool.infra.tracking import Artifacts
from polypool.pipelines.comparison.archives import read_archive, write_archive
from polypool.pipelines.comparison.documents import renewed
from polypool.pipelines.comparison.result_files import read_results, write_results
from polypool.pipelines.comparison.results import results


def _kind(name: str, form: str) -> Kind:
    def make(folder: Path) -> None:
        write_results(results(blocks_of(*three_tasks())), folder / name)

    def read(folder: Path) -> int:
        for record in read_results(folder / name):
            expect(type(record.decides) is bool and isinstance(record.mean, float | None), f"{record}")
        text = f"<!-- table: {name} -->\n<!-- end of table -->\n"
        new, _ = renewed(text, folder, where="document")
        changed = renewed(new, folder, where="document")[1]
        expect(changed == [], "a table is not current right after it was written")
        return 0

    return Kind(name=f"compared {Path(name).suffix}", make=make, read=read, damaged={name: form})


def _archive(folder: Path) -> None:
    runs = [replace(each, artifacts=(folder / "none").as_uri()) for each in three_tasks()]
    write_archive(runs, Artifacts(""), folder / "runs.parquet")


def _read_archive(folder: Path) -> int:
    with TemporaryDirectory() as unpacked:
        for record in read_archive(folder / "runs.parquet", Path(unpacked)):
            expect(all(isinstance(value, float) for value in record.metrics.values()), f"{record}")
    return 0


KINDS = [
    _kind("results.csv", "csv"),
    _kind("results.parquet", "raw"),
    Kind(name="archive of runs", make=_archive, read=_read_archive, damaged={"runs.parquet": "raw"}),
]
