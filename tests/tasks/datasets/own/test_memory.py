"""Ingest of tables takes no more memory with more rows."""

import json
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from polypool.infra.errors import InputError
from polypool.tasks.datasets.own import table

PROGRAM = """
import resource, sys
from pathlib import Path
from polypool.pipelines.data.ingestion import ingest
from polypool.tasks.datasets.own.table import Table

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

for name in sys.argv[2:]:
    ingest(Table(file=(Path(sys.argv[1]) / name,)), out=Path(sys.argv[1]) / "out")
    print(peak())
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_ten_times_the_rows_take_little_more_memory(suffix, tmp_path):
    for name, count in (("few", 20_000), ("many", 200_000)):
        with (tmp_path / f"{name}.{suffix}").open("w") as file:
            rows = ({"id": str(n), "caption": f"a dog, number {n}"} for n in range(count))
            if suffix == "json":
                file.write("[" + ",\n".join(map(json.dumps, rows)) + "]")
            else:
                file.write("id,caption\n" + "".join(f'{row["id"]},"{row["caption"]}"\n' for row in rows))
    names = (f"few.{suffix}", f"many.{suffix}")
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, *names], capture_output=True, text=True, check=True
    ).stdout
    few, many = (int(line) for line in said.splitlines() if line.isdigit())
    assert many - few < 60, f"{few} and {many} MB"


def test_little_of_a_csv_file_is_read_ahead_of_a_slow_consumer(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_BLOCK", 4096)
    (tmp_path / "a.csv").write_text("id,caption\n" + "1,a dog on the grass\n" * 200_000)
    file = table.TableFile.open(tmp_path / "a.csv")
    time.sleep(0.5)  # until what was read to open it is gone
    before, held = pa.total_allocated_bytes(), []
    for number, row in enumerate(file.rows(["caption"])):
        assert row == {"caption": "a dog on the grass"}
        if number % 20_000 == 0:
            time.sleep(0.05)
            held.append(pa.total_allocated_bytes() - before)
    assert len(held) == 10
    assert max(held) < 1 << 20


def test_a_row_larger_than_what_is_decoded_at_a_time_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_BLOCK", 64)
    (tmp_path / "a.csv").write_text('id,caption\n1,a dog\n2,"' + "and a cat\n" * 50)
    with pytest.raises(InputError, match=r"a.csv: cannot be read: a row of over 64 bytes; perhaps a quote"):
        list(table.TableFile.open(tmp_path / "a.csv").rows(["caption"]))
