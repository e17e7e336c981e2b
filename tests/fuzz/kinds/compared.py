"""Files of a comparison, read back for the tables of documents."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fuzz.cases import Kind, expect
from polypool.pipelines.comparison.documents import renewed
from polypool.pipelines.comparison.result_files import read_results, write_results
from polypool.pipelines.comparison.results import Result

_ONE = Result(
    task="image_text",
    dataset="tiny",
    protocol="whole",
    row="gpo",
    aggregator="gpo",
    recipe="tiny",
    model="",
    settings="",
    usual="",
    metric="rsum",
    decides=True,
    unit="",
    higher_is_better=True,
    best=600.0,
    chance=3.0,
    own_protocol=True,
    seeds="0; 1",
    values="70; 71.5",
    mean=70.75,
    deviation=1.06,
    low=68.0,
    high=73.5,
    pairs=1,
    queries="60 images with their captions",
    run_ids="a; b",
    commits="1234567890ab+",
    command="polypool train tiny",
)
_OTHER = dataclasses.replace(
    _ONE,
    row="mean",
    aggregator="mean",
    values="60; 61.5",
    mean=60.75,
    against="gpo",
    difference=-10.0,
    difference_low=-12.0,
    difference_high=-8.0,
    p=0.003,
    over_seeds=True,
)
_ELSEWHERE = [dataclasses.replace(record, task="vqa", dataset="asked") for record in (_ONE, _OTHER)]


def _kind(name: str, form: str) -> Kind:
    def make(folder: Path) -> None:
        write_results([_ONE, _OTHER, *_ELSEWHERE], folder / name)

    def read(folder: Path) -> int:
        records = read_results(folder / name)
        for record in records:
            expect(type(record.decides) is bool and isinstance(record.mean, float | None), f"{record}")
        text = f"<!-- table: {name} -->\n<!-- end of table -->\n"
        new, _ = renewed(text, folder, where="document")
        expect(
            renewed(new, folder, where="document")[1] == [],
            "a table is not current right after it was written",
        )
        return 0

    return Kind(name=f"compared {Path(name).suffix}", make=make, read=read, damaged={name: form})


KINDS = [_kind("results.csv", "csv"), _kind("results.parquet", "raw")]
