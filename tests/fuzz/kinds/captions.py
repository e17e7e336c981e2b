"""Readers of captions of images and videos: each `ingest` verb that writes a corpus of items."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from fuzz.cases import Kind
from fuzz.kinds.results import ALL, OUT, corpus_of, in_json, store_of
from polypool.pipelines.data.ingestion import ingest, scan
from polypool.tasks.datasets.readers.hgr_release import Hgr
from polypool.tasks.datasets.readers.karpathy import Karpathy
from polypool.tasks.datasets.readers.msrvtt_json import MsrVtt, MsrVtt1kA
from polypool.tasks.datasets.readers.table import Table
from polypool.tasks.datasets.readers.youtube_clips import Msvd, Vatex

SPLITS = ["train"] * 4 + ["val"] * 2 + ["test"] * 2


def _karpathy(folder: Path) -> None:
    (folder / "images" / "val2014").mkdir(parents=True)
    images = []
    for i, split in enumerate([*SPLITS, "restval"]):
        below = "val2014" if i % 2 else ""
        Image.new("L", (2, 2), i * 20).save(folder / "images" / below / f"{i}.png")
        sentences = [
            {"raw": f"A dog {i} .", "sentid": 2 * i, "tokens": ["a"]},
            {"raw": "Café", "sentid": 2 * i + 1},
        ]
        images.append(
            {
                "filename": f"{i}.png",
                "filepath": below,
                "split": split,
                "sentences": sentences,
                "cocoid": 100 + i,
            }
        )
    (folder / "dataset.json").write_text(json.dumps({"images": images, "dataset": "coco"}, indent=1))


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
    videos = [
        {"video_id": f"video{i}", "split": {"val": "validate"}.get(split, split), "id": i, "url": "x"}
        for i, split in enumerate(SPLITS)
    ]
    sentences = [
        {"sen_id": 2 * i + j, "video_id": f"video{i}", "caption": f"a dog runs {i} {j}"}
        for i in range(len(SPLITS))
        for j in range(2)
    ]
    (folder / "data.json").write_text(json.dumps({"info": {}, "videos": videos, "sentences": sentences}))


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
    for name, count in (("training", 4), ("validation", 4)):
        entries = [
            {"videoID": f"{name}{i}_000001_000011", "enCap": [f"a dog {i}", "a café"], "chCap": ["x"]}
            for i in range(count)
        ]
        (folder / f"{name}.json").write_text(json.dumps(entries))
    names = [f"validation{i}_000001_000011" for i in range(4)]
    np.save(folder / "val.npy", np.array(names[:2]))
    (folder / "test.txt").write_text("\n".join(names[2:]) + "\n")


def _read_vatex(folder: Path) -> int:
    training, validation = folder / "training.json", folder / "validation.json"
    lists = {"val_ids": folder / "val.npy", "test_ids": folder / "test.txt"}
    ingest(Vatex(training=training, validation=validation, **lists), out=OUT, tolerance=ALL)
    return corpus_of(entries=in_json("training.json") + in_json("validation.json"))


def _msvd(folder: Path) -> None:
    lines = [f"clip{i}_0_9 a dog runs {i} {j}" for i in range(len(SPLITS)) for j in range(2)]
    (folder / "captions.txt").write_text("\n".join(["# about", *lines]) + "\n")
    for split in ("train", "val", "test"):
        clips = [f"clip{i}_0_9" for i, each in enumerate(SPLITS) if each == split]
        (folder / f"{split}_list.txt").write_text("\n".join(clips) + "\n")


def _read_msvd(folder: Path) -> int:
    ingest(Msvd(captions=folder / "captions.txt", lists=folder), out=OUT, tolerance=ALL)
    listed = sum(
        len((folder / f"{split}_list.txt").read_bytes().decode("utf-8-sig", "replace").split())
        for split in ("train", "val", "test")
    )
    return corpus_of(entries=listed)


def hgr_release(folder: Path) -> dict[str, list[str]]:
    """Write the names of HGR's splits and their captions; return the names."""
    (folder / "splits").mkdir()
    names = {"trn": ["tumblr/one", "video2", "video10"], "val": ["video3"], "tst": ["video5", "a/b/c"]}
    for split, listed in names.items():
        np.save(folder / "splits" / f"{split}_names.npy", np.array(listed))
    told = {name: [f"{name} is seen", "someone looks"] for listed in names.values() for name in listed}
    (folder / "ref_captions.json").write_text(json.dumps(told))
    return names


def _read_hgr(folder: Path) -> int:
    ingest(Hgr(captions=folder / "ref_captions.json", splits=folder / "splits"), out=OUT, tolerance=ALL)
    return corpus_of()


def _table(folder: Path) -> None:
    (folder / "pictures").mkdir()
    rows = []
    for i, split in enumerate(SPLITS):
        Image.new("L", (2, 2), i * 20).save(folder / "pictures" / f"{i}.png")
        rows += [{"image": f"pictures/{i}.png", "caption": f"a café, {j}", "split": split} for j in range(2)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join(f'"{value}"' for value in row.values()) for row in rows]
    (folder / "a.csv").write_text("\n".join(["image,caption,split", *lines]) + "\n")


def _read_table(folder: Path, *, name: str) -> int:
    ingest(Table(file=(folder / name,)), out=OUT, tolerance=ALL)
    return corpus_of()


_LISTS = {f"splits/{split}_names.npy": "npy" for split in ("trn", "val", "tst")}
_MSVD = {f"{split}_list.txt": "lines" for split in ("train", "val", "test")}
_SCAN = {f"{split}_caps.txt": "lines" for split in ("train", "dev")} | {
    "train_ims.npy": "npy",
    "dev_ims.npy": "npy",
    "train_ids.txt": "lines",
    "dev_ids.txt": "lines",
}
_1KA = {"data.json": "json", "train.csv": "csv", "test.csv": "csv"}
_VATEX = {"training.json": "json", "validation.json": "json", "val.npy": "npy", "test.txt": "lines"}

KINDS = [
    *(
        Kind(name=f"table, {kind}", make=_table, read=partial(_read_table, name=name), damaged={name: kind})
        for name, kind in (("a.csv", "csv"), ("a.jsonl", "lines"))
    ),
    Kind(name="karpathy", make=_karpathy, read=_read_karpathy, damaged={"dataset.json": "json"}),
    Kind(name="scan", make=_scan, read=_read_scan, damaged=_SCAN),
    Kind(name="msrvtt", make=_msrvtt, read=_read_msrvtt, damaged={"data.json": "json"}),
    Kind(name="msrvtt-1ka", make=_msrvtt_1ka, read=_read_msrvtt_1ka, damaged=_1KA),
    Kind(name="vatex", make=_vatex, read=_read_vatex, damaged=_VATEX),
    Kind(name="msvd", make=_msvd, read=_read_msvd, damaged={"captions.txt": "lines"} | _MSVD),
    Kind(name="hgr", make=hgr_release, read=_read_hgr, damaged={"ref_captions.json": "json"} | _LISTS),
]
