"""Karpathy's JSON: captions and splits of COCO, Flickr30K and corpora in their form.

`{"images": [{"filename", "filepath"?, "cocoid"?, "imgid", "split", "sentences": [{"raw", "sentid"?}, ...]}, ...]}`.
Splits are `train`, `restval`, `val`, `test`; everyone trains on `train` and `restval` together.

Source: Karpathy and Fei-Fei, "Deep visual-semantic alignments for generating image descriptions", CVPR 2015.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.files import existing_folder, identity
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reader, Reading
from polypool.tasks.datasets.annotations import leaves, misfit, read_form
from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets.readers.folders import Listing
from polypool.tasks.datasets.splits import COCO, FLICKR8K, FLICKR30K

_WHAT = 'Karpathy\'s JSON, {"images": [{"filename", "split", "sentences", ...}, ...]}'
_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_PUBLISHED = {"coco": COCO, "flickr30k": FLICKR30K, "flickr8k": FLICKR8K}


@READERS.register("karpathy")
@dataclass(frozen=True, kw_only=True)
class Karpathy(Reader):
    """Read captions and splits from Karpathy's JSON."""

    json: Path
    """dataset_coco.json, dataset_flickr30k.json, dataset_flickr8k.json, or a file of that form."""
    images: Path | None = None
    """Folder of the images, or of the folders that the file names; without it no image is looked for, and runs read
    features alone."""
    limit: int | None = None
    """Take only the first images of each split that can be used."""

    def read(self) -> Reading:
        """Return the images of the file; images that are not in the folder and incomplete entries are skipped.

        The id is the `cocoid`, or the `imgid` if no image of the file has a `cocoid` (flagged if it is null). Features
        and ratings refer to that id, so one corpus never mixes the two. The id of a caption is its `sentid`, if all
        captions of the image have one. Paths are relative to `images`.
        """
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit must be at least 1, not {self.limit}")
        data = read_form(self.json, what=_WHAT, lists=["images"], entry=_without_tokens)
        dataset = str(data.get("dataset") or "")
        return Reading(
            rows=self._items(data["images"]),
            source={
                "files": identity(self.json),
                **({"limit": self.limit} if self.limit else {}),
            },
            images=self.images or "",
            published=[_PUBLISHED[dataset]] if dataset in _PUBLISHED and not self.limit else (),
        )

    def _items(self, entries: list[Any]) -> Iterator[Item | Skipped | Flagged]:
        listing = Listing(existing_folder(self.images, what="the folder of images")) if self.images else None
        has_cocoids = any(isinstance(entry, dict) and entry.get("cocoid") is not None for entry in entries)
        id_field = "cocoid" if has_cocoids else "imgid"
        fields = {id_field: (int, str), "filename": str, "sentences": list}
        taken = Counter[str]()
        for number, entry in enumerate(Progress(entries, desc="captions", unit="image")):
            where = f"{self.json.name}, image {number}"
            split = entry.get("split") if isinstance(entry, dict) else None
            split = _SPLITS.get(split) if isinstance(split, str) else None
            if split is not None and taken[split] == self.limit:
                continue
            if why := misfit(entry, "an image", **fields) or _odd_parts(entry):
                yield Skipped(where=where, why=why, split=split or "")
            elif split is None:
                why = f"unknown split, expected {', '.join(_SPLITS)}"
                yield Skipped(where=f"{where}, split {json.dumps(entry.get('split')):.60}", why=why)
            else:
                if "cocoid" in entry and not has_cocoids:
                    yield Flagged(where=where, why="its cocoid is null, and its imgid is taken as its id")
                item = self._item(entry, id=str(entry[id_field]), split=split, listing=listing)
                taken[split] += isinstance(item, Item)
                yield item

    def _item(self, entry: dict[str, Any], *, id: str, split: str, listing: Listing | None) -> Item | Skipped:
        """Return the item of an entry, or a `Skipped` for a missing image."""
        name, sentences = entry["filename"], entry["sentences"]
        below = os.path.join(entry.get("filepath", ""), name)
        path = ""
        if self.images and listing:
            if leaves(below, folder=self.images):
                why = "a path that leaves the folder of images"
                return Skipped(where=f"id {id}, {below}", why=why, split=split)
            path = next((path for path in (below, name) if listing.has(path)), "")
            if not path:
                return Skipped(where=f"id {id}, {below}", why=f"no such image in {self.images}", split=split)
        names = tuple(str(sentence["sentid"]) for sentence in sentences if "sentid" in sentence)
        return Item(
            id=id,
            split=split,
            captions=tuple(sentence.get("raw") for sentence in sentences),
            path=path,
            caption_ids=names if len(names) == len(sentences) else (),
        )


def _without_tokens(entry: dict[str, Any]) -> dict[str, Any]:
    """Drop the tokenised captions, most of the file's size in memory, while it is parsed."""
    entry.pop("tokens", None)
    return entry


def _odd_parts(entry: dict[str, Any]) -> str | None:
    """Return why the sentences or the folder of an entry are invalid; None if they are valid."""
    if "filepath" in entry and (why := misfit(entry, "an image", filepath=str)):
        return why
    for sentence in entry["sentences"]:
        ids = {"sentid": (int, str)} if isinstance(sentence, dict) and "sentid" in sentence else {}
        if why := misfit(sentence, "a sentence", **ids):
            return why
    return None
