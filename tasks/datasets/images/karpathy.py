"""Karpathy's JSON: captions and splits of COCO, Flickr30K and corpora in their form.

`{"images": [{"filename", "filepath"?, "cocoid"?, "imgid", "split", "sentences": [{"raw", "sentid"?}, ...]}, ...]}`.
Splits are `train`, `restval`, `val`, `test`; everyone trains on `train` and `restval` together.

Source: Karpathy and Fei-Fei, "Deep visual-semantic alignments for generating image descriptions", CVPR 2015.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from infra.errors import InputError
from infra.files import existing_folder, identity, read_json
from infra.registry import READERS
from tasks.datasets.corpus import Flagged, Item, Skipped
from tasks.datasets.own.listing import Listing
from tasks.datasets.published import COCO, FLICKR30K
from tasks.datasets.reader import Reader, Reading
from tasks.datasets.rows import leaves

_WHAT = 'Karpathy\'s JSON, {"images": [{"filename", "split", "sentences", ...}, ...]}'
_FORM, _SPLIT = "not of the expected form", "unknown split"
_IDS = ("cocoid", "imgid")
_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_PUBLISHED = {"coco": COCO, "flickr30k": FLICKR30K}


@READERS.register("karpathy")
@dataclass(frozen=True, kw_only=True)
class Karpathy(Reader):
    """Read captions and splits from Karpathy's JSON."""

    json: Path
    """dataset_coco.json, dataset_flickr30k.json, or a file of that form."""
    images: Path
    """Folder of the images, or of the folders that the file names."""
    keep_restval: bool = False
    """Keep restval a split of its own; by default it joins train."""

    def read(self) -> Reading:
        """Return the images of the file; see `read_karpathy`."""
        file = open_karpathy(self.json)
        return Reading(
            rows=read_karpathy(file, images=self.images, keep_restval=self.keep_restval),
            source={"files": identity(self.json), "keep_restval": self.keep_restval},
            images=self.images,
            published=[_PUBLISHED[file.dataset]] if file.dataset in _PUBLISHED else (),
        )


@dataclass(frozen=True, kw_only=True)
class KarpathyFile:
    """A file, before anything is made of it.

    Args:
        name: of the file.
        dataset: what it calls its data set, `coco` or `flickr30k` in the published ones; may be empty.
        entries: of the images, whatever they are.
    """

    name: str
    dataset: str
    entries: list[Any]


def open_karpathy(path: str | Path) -> KarpathyFile:
    """Read a file.

    Raises:
        InputError: it is missing, cut short or of another form.
    """
    data = read_json(path, what=_WHAT, object_hook=_without_tokens)
    if not isinstance(data, dict) or not isinstance(data.get("images"), list):
        raise InputError(f"{path}: not of the expected form: {_WHAT}")
    return KarpathyFile(name=Path(path).name, dataset=str(data.get("dataset") or ""), entries=data["images"])


def read_karpathy(
    file: KarpathyFile, *, images: str | Path, keep_restval: bool = False
) -> Iterator[Item | Skipped | Flagged]:
    """Yield the items of a file; an image that is not there, or an entry that lacks a field, is skipped.

    The id is the `cocoid`; in a file where no image has one it is the `imgid`, flagged where there is a `cocoid` and it
    is null. Features and ratings go by that id, so the two kinds of number are never mixed. The id of a caption is its
    `sentid`. Paths are below `images`.

    Args:
        file: `dataset_coco.json`, `dataset_flickr30k.json` or a file of that form.
        images: the folder that holds the image files, or that holds the folders which `filepath` names.
        keep_restval: leave `restval` a split of its own, rather than a part of `train`.

    Raises:
        InputError: there is no such folder.
    """
    folder = existing_folder(images, what="the folder of images")
    splits = _SPLITS | {"restval": "restval"} if keep_restval else _SPLITS
    listing = Listing(folder)
    has_cocoids = any(isinstance(entry, dict) and entry.get(_IDS[0]) is not None for entry in file.entries)
    id_field = _IDS[0] if has_cocoids else _IDS[1]
    for number, entry in enumerate(tqdm(file.entries, desc="captions", unit="image")):
        where = f"{file.name}, image {number}"
        if why := _fault(entry, id_field=id_field, splits=splits):
            where += f", split {json.dumps(entry.get('split')):.60}" if why.startswith(_SPLIT) else ""
            split = entry.get("split") if isinstance(entry, dict) else None
            yield Skipped(where=where, why=why, split=splits.get(split, "") if isinstance(split, str) else "")
            continue
        if _IDS[0] in entry and not has_cocoids:
            yield Flagged(where=where, why="its cocoid is null, and its imgid is taken as its id")
        yield _item(entry, id=str(entry[id_field]), folder=folder, splits=splits, listing=listing)


def _without_tokens(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop the tokenised captions while the file is read: they are most of its size in memory."""
    entry.pop("tokens", None)
    return entry


def _fault(entry: Any, *, id_field: str, splits: dict[str, str]) -> str | None:
    """Return why an entry cannot be used, None where it can."""
    if not isinstance(entry, dict):
        return f"{_FORM}: an image that is not an object"
    if type(entry.get(id_field)) not in (int, str):
        return f"{_FORM}: an image without a {id_field} that is a number or a string"
    if not isinstance(entry.get("filename"), str) or not isinstance(entry.get("filepath", ""), str):
        return f"{_FORM}: an image whose filename or filepath is not a string"
    if not isinstance(entry.get("split"), str) or entry["split"] not in splits:
        return f"{_SPLIT}, expected {', '.join(splits)}"
    sentences = entry.get("sentences")
    if not isinstance(sentences, list):
        return f"{_FORM}: an image without a list of sentences"
    if not all(isinstance(each, dict) and isinstance(each.get("raw"), str) for each in sentences):
        return f"{_FORM}: a sentence whose text, raw, is not there or not a string"
    return None


def _item(
    entry: dict[str, Any], *, id: str, folder: Path, splits: dict[str, str], listing: Listing
) -> Item | Skipped:
    """Return what an entry without fault stands for."""
    name, below, split = entry["filename"], entry.get("filepath", ""), splits[entry["split"]]
    where = f"id {id}, {os.path.join(below, name)}"
    if leaves(os.path.join(below, name), folder=folder):
        return Skipped(where=where, why="a path that leaves the folder of images", split=split)
    path = next((path for path in (os.path.join(below, name), name) if listing.has(path)), None)
    if path is None:
        return Skipped(where=where, why=f"no such image in {folder}", split=split)
    captions = tuple(sentence["raw"] for sentence in entry["sentences"])
    names = tuple(str(sentence["sentid"]) for sentence in entry["sentences"] if "sentid" in sentence)
    names = names if len(names) == len(captions) else ()
    return Item(id=id, split=split, captions=captions, path=path, caption_ids=names)
