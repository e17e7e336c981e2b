"""Files of a comparison, read back for the tables of documents."""

from __future__ import annotations

from pathlib import Path

from records import blocks_of, three_tasks

from fuzz.cases import Kind, expect
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


KINDS = [_kind("results.csv", "csv"), _kind("results.parquet", "raw")]
