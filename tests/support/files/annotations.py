"""Small annotation files in the formats of Karpathy, MSR-VTT, MSVD, VATEX, DiDeMo, ActivityNet and HGR."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np

HGR_NAMES = {"trn": ["tumblr/one", "video2", "video10"], "val": ["video3"], "tst": ["video5", "a/b/c"]}


def karpathy_entry(number: int, **changes: object) -> dict:
    """One image as in dataset_coco.json."""
    sentences = [
        {"tokens": ["a", "cat"], "raw": f"A cat, number {number}.", "imgid": number, "sentid": 5 * number + i}
        for i in range(5)
    ]
    return {
        "filepath": "val2014",
        "sentids": [5 * number + i for i in range(5)],
        "filename": f"COCO_val2014_{number:012d}.jpg",
        "imgid": number,
        "split": "train",
        "sentences": sentences,
        "cocoid": 1000 + number,
    } | changes


def write_karpathy(folder: Path, entries: list, *, place: str = "val2014") -> Path:
    (folder / "images" / place).mkdir(parents=True)
    for one in entries:
        if isinstance(one, dict) and isinstance(one.get("filename"), str):
            (folder / "images" / place / one["filename"]).touch()
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": entries, "dataset": "coco"}))
    return path


def msrvtt_video(number: int, split: str = "train", **changes: object) -> dict:
    """A video as in train_val_videodatainfo.json."""
    about = {"category": 14, "url": "https://www.youtube.com/watch?v=x", "start time": 1.5, "end time": 11.5}
    return about | {"video_id": f"video{number}", "split": split, "id": number} | changes


def msrvtt_sentence(number: int, of: int, **changes: object) -> dict:
    return {"caption": f"a caption {number}", "video_id": f"video{of}", "sen_id": number} | changes


def write_msrvtt(path: Path, videos: list, sentences: list) -> Path:
    path.write_text(json.dumps({"info": {"year": "2016"}, "videos": videos, "sentences": sentences}))
    return path


def write_msvd(folder: Path, lines: bytes, **lists: str) -> tuple[object, ...]:
    (folder / "AllVideoDescriptions.txt").write_bytes(lines)
    for split, names in lists.items():
        (folder / f"{split}_list.txt").write_text(names)
    return "--captions", folder / "AllVideoDescriptions.txt", "--lists", folder, "--out", folder / "out"


def vatex_entries(first: int, count: int) -> list[dict]:
    return [
        {
            "videoID": vatex_name(i),
            "enCap": [f"Person {i} says {j}." for j in range(10)],
            "chCap": ["一个人"] * 10,
        }
        for i in range(first, first + count)
    ]


def vatex_name(number: int) -> str:
    return f"-id_{number:04d}_000010_000020"


def write_vatex(folder: Path, training: object, validation: object) -> tuple[object, ...]:
    files = folder / "vatex_training_v1.0.json", folder / "vatex_validation_v1.0.json"
    for path, data in zip(files, (training, validation), strict=True):
        path.write_text(json.dumps(data))
    return "--training", files[0], "--validation", files[1], "--out", folder / "out"


def didemo_entry(number: int, description: str, **changes: object) -> dict:
    """A moment as in DiDeMo's train_data.json."""
    return {
        "num_segments": 6,
        "description": description,
        "dl_link": "https://www.flickr.com/video_download.gne?id=1",
        "times": [[0, 0], [0, 0], [0, 1], [0, 0]],
        "video": f"12090392@N02_{number}.mov",
        "annotation_id": 7 * number,
    } | changes


def activitynet_video(*sentences: object) -> dict:
    """A video as in ActivityNet Captions' train.json."""
    times = [[10.0 * n, 10.0 * n + 9.5] for n in range(len(sentences))]
    return {"duration": 82.73, "timestamps": times, "sentences": [*sentences]}


def write_paragraphs(folder: Path, **splits: object) -> tuple[object, ...]:
    for split, data in splits.items():
        (folder / f"{split}.json").write_text(json.dumps(data))
    return *chain(*((f"--{split}", folder / f"{split}.json") for split in splits)), "--out", folder / "out"


def write_hgr(folder: Path, names: dict[str, list[str]] = HGR_NAMES, **captions: object) -> tuple[Path, Path]:
    """Write `ref_captions.json` (two sentences per video unless given) and `public_split`; return both paths."""
    (folder / "public_split").mkdir(exist_ok=True)
    for split, listed in names.items():
        np.save(folder / "public_split" / f"{split}_names.npy", np.array(listed))
    told = {name: [f"{name} is seen", "someone looks at it"] for listed in names.values() for name in listed}
    path = folder / "ref_captions.json"
    path.write_text(json.dumps(told | captions))
    return path, folder / "public_split"
