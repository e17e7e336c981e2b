"""Karpathy's JSON: captions and splits of COCO, Flickr30K and corpora in their form.

`{"images": [{"filename", "filepath"?, "cocoid"?, "imgid", "split", "sentences": [{"raw", "sentid"?}, ...]}, ...]}`.
Splits are `train`, `restval`, `val`, `test`; everyone trains on `train` and `restval` together.

Source: Karpathy and Fei-Fei, "Deep visual-semantic alignments for generating image descriptions", CVPR 2015.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from infra.errors import InputError
from infra.files import existing_folder, read_json
from tasks.datasets.corpus import Item, Skipped

_WHAT = 'Karpathy\'s JSON, {"images": [{"filename", "split", "sentences", ...}, ...]}'
_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}


def read_karpathy(
    path: str | Path, *, images: str | Path, keep_restval: bool = False
) -> Iterator[Item | Skipped]:
    """Yield the items of a file; an image that is not there, or an entry that lacks a field, is skipped.

    The id is the `cocoid` where there is one, else the `imgid`; that of a caption is its `sentid`. Paths are below
    `images`.

    Args:
        path: `dataset_coco.json`, `dataset_flickr30k.json` or a file of that form.
        images: the folder that holds the image files, or that holds the folders which `filepath` names.
        keep_restval: leave `restval` a split of its own, rather than a part of `train`.

    Raises:
        InputError: the file is cut short or of another form, or there is no such folder.
    """
    folder = existing_folder(images, what="the folder of images")
    data = read_json(path, what=_WHAT, object_hook=_without_tokens)
    if not isinstance(data, dict) or not isinstance(data.get("images"), list):
        raise InputError(f"{path}: not of the expected form: {_WHAT}")
    splits = _SPLITS | {"restval": "restval"} if keep_restval else _SPLITS
    files: dict[str, set[str]] = {}
    for number, entry in enumerate(tqdm(data["images"], desc="captions", unit="image")):
        yield _item(
            entry, where=f"{Path(path).name}, image {number}", folder=folder, splits=splits, files=files
        )


def _without_tokens(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop the tokenised captions while the file is read: they are most of its size in memory."""
    entry.pop("tokens", None)
    return entry


def _item(
    entry: Any, *, where: str, folder: Path, splits: dict[str, str], files: dict[str, set[str]]
) -> Item | Skipped:
    try:
        id = entry["cocoid"] if "cocoid" in entry else entry["imgid"]
        name, below, split = entry["filename"], entry.get("filepath", ""), entry["split"]
        captions = tuple(sentence["raw"] for sentence in entry["sentences"])
        names = tuple(str(sentence["sentid"]) for sentence in entry["sentences"] if "sentid" in sentence)
    except (KeyError, TypeError, AttributeError) as error:
        return Skipped(where=where, why=f"not of the expected form: {type(error).__name__}: {error}")
    if not all(isinstance(text, str) for text in (name, below, split, *captions)):
        return Skipped(where=where, why="a filename, split or caption that is not a string")
    if split not in splits:
        return Skipped(where=where, why=f"unknown split {split!r}, expected {', '.join(splits)}")
    path = _find(name, below=below, folder=folder, files=files)
    if path is None:
        return Skipped(where=f"id {id}, {os.path.join(below, name)}", why=f"no such image in {folder}")
    names = names if len(names) == len(captions) else ()
    return Item(id=str(id), split=splits[split], captions=captions, path=path, caption_ids=names)


def _find(name: str, *, below: str, folder: Path, files: dict[str, set[str]]) -> str | None:
    """Return the image's path below `folder`: in the folder the entry names, or directly in it.

    Each folder is listed once, into `files`: to ask for 123,287 files one by one is slow on a network disk.
    """
    for place in dict.fromkeys((below, "")):
        if place not in files:
            inside = folder / place
            files[place] = set(os.listdir(inside)) if inside.is_dir() else set()
        if name in files[place]:
            return os.path.join(place, name)
    return None
