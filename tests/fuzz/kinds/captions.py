"""Readers of published captions of images and videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from annotations import (
    karpathy_entry,
    msrvtt_sentence,
    msrvtt_video,
    vatex_entries,
    vatex_name,
    write_hgr,
    write_karpathy,
    write_msrvtt,
    write_msvd,
    write_vatex,
)

from fuzz.cases import Kind
from fuzz.kinds.results import ALL, OUT, corpus_of, in_json, store_of
from polypool.pipelines.data.ingestion import ingest, scan
from polypool.tasks.datasets.readers.hgr_release import Hgr
from polypool.tasks.datasets.readers.karpathy import Karpathy
from polypool.tasks.datasets.readers.msrvtt_json import MsrVtt, MsrVtt1kA
from polypool.tasks.datasets.readers.youtube_clips import Msvd, Vatex

_DESCRIPTIONS = "AllVideoDescriptions.txt"
SPLITS = ["train"] * 4 + ["val"] * 2 + ["test"] * 2


def _karpathy(folder: Path) -> None:
    splits = enumerate([*SPLITS, "restval"])
    write_karpathy(folder, [karpathy_entry(i, split=split) for i, split in splits])


def _read_karpathy(folder: Path) -> int:
    reader = Karpathy(json=folder / "dataset.json", images=folder / "images")
    ingest(reader, out=OUT, tolerance=ALL)
    return corpus_of(entries=in_json("dataset.json", "images"))


def _scan(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name, count, start in (("train", 6, 0), ("dev", 3, 6)):
        np.save(folder / f"{name}_ims.npy", random.standard_normal((count, 2, 4)).astype(np.float32))
        captions = [f"caption {i} of café {n}" for n in range(start, start + count) for i in range(2)]
        (folder / f"{name}_caps.txt").write_text("\n".join(captions) + "\n", "utf-8")
        (folder / f"{name}_ids.txt").write_text("\n".join(map(str, range(start, start + count))))


def _read_scan(folder: Path) -> int:
    scan(dir=folder, out=OUT, tolerance=ALL)
    return corpus_of() + store_of(OUT / "regions")


def _msrvtt(folder: Path) -> None:
    splits = enumerate({"val": "validate"}.get(split, split) for split in SPLITS)
    sentences = [msrvtt_sentence(2 * i + j, i) for i in range(len(SPLITS)) for j in range(2)]
    write_msrvtt(folder / "data.json", [msrvtt_video(i, split) for i, split in splits], sentences)


def _read_msrvtt(folder: Path) -> int:
    ingest(MsrVtt(json=(folder / "data.json",)), out=OUT, tolerance=ALL)
    return corpus_of(entries=in_json("data.json", "videos"))


def _msrvtt_1ka(folder: Path) -> None:
    _msrvtt(folder)
    (folder / "train.csv").write_text("\n".join(["video_id", *(f"video{i}" for i in range(5))]) + "\n")
    rows = [f"ret{i},msr{i},video{i},a dog runs {i}" for i in range(5, 8)]
    (folder / "test.csv").write_text("\n".join(["key,vid_key,video_id,sentence", *rows]) + "\n")


def _read_msrvtt_1ka(folder: Path) -> int:
    train, test = folder / "train.csv", folder / "test.csv"
    reader = MsrVtt1kA(json=(folder / "data.json",), train=train, test=test, val=1)
    ingest(reader, out=OUT, tolerance=ALL)
    rows = 0
    for path in (train, test):
        lines = path.read_text("utf-8-sig", "replace").split("\n")
        rows += sum(bool(line.strip()) for line in lines) - 1
    return corpus_of(entries=rows)


def _vatex(folder: Path) -> None:
    write_vatex(folder, vatex_entries(0, 4), vatex_entries(4, 4))
    np.save(folder / "val.npy", np.array([vatex_name(i) for i in (4, 5)]))
    (folder / "test.txt").write_text("".join(f"{vatex_name(i)}\n" for i in (6, 7)))


def _read_vatex(folder: Path) -> int:
    training, validation = (folder / name for name in _VATEX if name.startswith("vatex"))
    lists = {"val_ids": folder / "val.npy", "test_ids": folder / "test.txt"}
    ingest(Vatex(training=training, validation=validation, **lists), out=OUT, tolerance=ALL)
    return corpus_of(entries=in_json(str(training)) + in_json(str(validation)))


def _msvd(folder: Path) -> None:
    lines = [f"clip{i}_0_9 a dog runs {i} {j}\n" for i in range(len(SPLITS)) for j in range(2)]
    clips = {
        split: [f"clip{i}_0_9" for i, each in enumerate(SPLITS) if each == split] for split in set(SPLITS)
    }
    lists = {split: "\n".join(names) for split, names in clips.items()}
    write_msvd(folder, "".join(["# about\n", *lines]).encode(), **lists)


def _read_msvd(folder: Path) -> int:
    ingest(Msvd(captions=folder / _DESCRIPTIONS, lists=folder), out=OUT, tolerance=ALL)
    listed = sum(
        len((folder / f"{split}_list.txt").read_bytes().decode("utf-8-sig", "replace").split())
        for split in ("train", "val", "test")
    )
    return corpus_of(entries=listed)


def _read_hgr(folder: Path) -> int:
    ingest(Hgr(captions=folder / "ref_captions.json", splits=folder / "public_split"), out=OUT, tolerance=ALL)
    return corpus_of()


_LISTS = {f"public_split/{split}_names.npy": "npy" for split in ("trn", "val", "tst")}
_MSVD = {f"{split}_list.txt": "lines" for split in ("train", "val", "test")}
_SCAN = {f"{split}_caps.txt": "lines" for split in ("train", "dev")} | {
    "train_ims.npy": "npy",
    "dev_ims.npy": "npy",
    "train_ids.txt": "lines",
    "dev_ids.txt": "lines",
}
_1KA = {"data.json": "json", "train.csv": "csv", "test.csv": "csv"}
_VATEX = {f"vatex_{name}_v1.0.json": "json" for name in ("training", "validation")}
_VATEX |= {"val.npy": "npy", "test.txt": "lines"}

KINDS = [
    Kind(name="karpathy", make=_karpathy, read=_read_karpathy, damaged={"dataset.json": "json"}),
    Kind(name="scan", make=_scan, read=_read_scan, damaged=_SCAN),
    Kind(name="msrvtt", make=_msrvtt, read=_read_msrvtt, damaged={"data.json": "json"}),
    Kind(name="msrvtt-1ka", make=_msrvtt_1ka, read=_read_msrvtt_1ka, damaged=_1KA),
    Kind(name="vatex", make=_vatex, read=_read_vatex, damaged=_VATEX),
    Kind(name="msvd", make=_msvd, read=_read_msvd, damaged={_DESCRIPTIONS: "lines"} | _MSVD),
    Kind(name="hgr", make=write_hgr, read=_read_hgr, damaged={"ref_captions.json": "json"} | _LISTS),
]
