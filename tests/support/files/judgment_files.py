"""Small files in the official formats of Crisscrossed Captions and ECCV Caption."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

HEADERS = {
    "sits": "caption,image,agg_score,sampling_method",
    "sts": "caption1,caption2,agg_score,sampling_method",
    "sis": "image1,image2,agg_score,sampling_method",
}


def image(id: object) -> str:
    return f"COCO_val2014_{int(id):012d}.jpg"


def caption(id: object) -> str:
    return f"COCO_val2014:sentid:{id}"


def write_csvs(folder: Path, *, split: str = "test", **rows: list[tuple[str, str, object]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, header in HEADERS.items():
        lines = [f"{a},{b},{rating},made" for a, b, rating in rows.get(kind, [])]
        (folder / f"{kind}_{split}.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder


def write_eccv(
    folder: Path,
    *,
    image_to_caption: Mapping[object, Sequence[int]],
    caption_to_image: Mapping[object, Sequence[int]],
) -> Path:
    folder.mkdir(exist_ok=True)
    for name, answers in (("image_to_caption", image_to_caption), ("caption_to_image", caption_to_image)):
        text = json.dumps({str(query): [*ids] for query, ids in answers.items()})
        (folder / f"eccv_{name}.json").write_text(text)
    return folder
