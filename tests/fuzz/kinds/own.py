"""Readers of data of one's own: tables in each form, and shards of WebDataset."""

from __future__ import annotations

import io
import json
import tarfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fuzz.cases import Kind, expect
from fuzz.kinds.results import ALL, OUT, corpus_of
from polypool.pipelines.data.ingestion import ingest
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.datasets.own.table import Table
from polypool.tasks.datasets.own.webdataset import WebDataset

_SPLITS = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
_SHARDS = {"a.tar": "tar", "b.tar.gz": "raw"}


def _picture(number: int) -> bytes:
    written = io.BytesIO()
    Image.new("L", (2, 2), number * 20).save(written, "png")
    return written.getvalue()


def _table(folder: Path, *, name: str) -> None:
    (folder / "pictures").mkdir()
    rows = []
    for i, split in enumerate(_SPLITS):
        (folder / "pictures" / f"{i}.png").write_bytes(_picture(i))
        rows += [{"image": f"pictures/{i}.png", "caption": f"a café, {j}", "split": split} for j in range(2)]
    path = folder / name
    if path.suffix == ".csv":
        lines = [",".join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join(["image,caption,split", *lines]) + "\n")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=8)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _read_table(folder: Path, *, name: str) -> int:
    ingest(Table(file=(folder / name,)), out=OUT, tolerance=ALL)
    return corpus_of()


def _shards(folder: Path) -> None:
    for name in _SHARDS:
        with tarfile.open(folder / name, "w:gz" if name.endswith(".gz") else "w") as tar:
            for i in range(6):
                text = json.dumps({"caption": f"a café, {i}"}).encode()
                for kind, data in (("png", _picture(i)), ("txt", b"a dog") if i % 2 else ("json", text)):
                    member = tarfile.TarInfo(f"in/{i}.{kind}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def _read_shards(folder: Path) -> int:
    """Ingest shards; what is written lies in the folder of images, and is what the corpus has."""
    ingest(
        WebDataset(shards=tuple(folder / name for name in _SHARDS), images=folder / "in"),
        out=OUT,
        tolerance=ALL,
    )
    skipped, corpus = corpus_of(), Corpus.open(OUT)
    for split in corpus.splits:
        for item in corpus.items(split):
            path = corpus.image_path(item)
            expect(path.is_file() and not path.is_symlink(), f"{item.id} is no file")
    outside = {path.name for path in folder.iterdir()} - {*_SHARDS, "in", OUT.name, ".rayignore"}
    expect(not outside, f"a shard wrote {outside} beside the folder of images")
    return skipped


KINDS = [
    *(
        Kind(
            name=f"table, {name}",
            make=partial(_table, name=name),
            read=partial(_read_table, name=name),
            damaged={name: form},
        )
        for name, form in (("a.csv", "csv"), ("a.jsonl", "lines"), ("a.json", "json"), ("a.parquet", "raw"))
    ),
    Kind(name="webdataset", make=_shards, read=_read_shards, damaged=_SHARDS),
]
