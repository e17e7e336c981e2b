"""Image-text and video-text annotations in one form, whatever format they were published in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.errors import InputError
from infra.files import atomic, make_folder, sha256, write_json
from infra.store.skipped import SkipLog, Skipped, describe
from tasks.datasets.tables import open_table

__all__ = ["Corpus", "Item", "Skipped", "Summary", "clean", "write_corpus"]

VERSION = 1
SKIPPED = "corpus.skipped.jsonl"
NAME = "corpus"  # of the table and its manifest
_TABLE, _MANIFEST = f"{NAME}.arrow", f"{NAME}.json"
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("split", pa.string()),
        ("path", pa.string()),
        ("captions", pa.list_(pa.string())),
        ("caption_ids", pa.list_(pa.string())),
    ]
)
_BATCH = 4096  # items a record batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One image or video.

    Args:
        id: unique in the corpus, and the id of its features.
        split: `train`, `val` or `test`.
        captions: all of them, in the order of the source; at least one.
        path: the image, absolute or below the corpus's folder of images; empty where there are only features.
        caption_ids: what the source calls each caption; empty where it gives them no names.
    """

    id: str
    split: str
    captions: tuple[str, ...]
    path: str = ""
    caption_ids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a corpus holds: items per split, captions in all, and what was left out (`SkipLog.summary`)."""

    splits: dict[str, int]
    captions: int
    skipped: dict[str, Any]


def clean(item: Item) -> Iterator[Item | Skipped]:
    """Yield what is wrong with the captions of an item, and then the item with those that are good.

    Runs of whitespace become one space.
    """
    captions, kept = [], []
    for number, caption in enumerate(item.captions):
        caption, where = " ".join(caption.split()), f"id {item.id}, caption {number + 1}"
        if not caption:
            yield Skipped(where=where, why="empty caption")
        elif not is_unicode(caption):
            yield Skipped(where=where, why="caption that is not valid UTF-8")
        else:
            captions.append(caption)
            kept.append(number)
    if not item.id or not item.id.isprintable():
        yield Skipped(where=f"id {item.id!r}", why="id that is empty or not printable")
    elif not captions:
        yield Skipped(where=f"id {item.id}", why="no captions")
    else:
        ids = tuple(item.caption_ids[number] for number in kept) if item.caption_ids else ()
        yield replace(item, captions=tuple(captions), caption_ids=ids)


def write_corpus(
    folder: str | Path, items: Iterable[Item | Skipped], *, source: dict[str, Any], images: str | Path = ""
) -> Summary:
    """Write a corpus from a stream of items: `corpus.arrow`, then `corpus.json`, and what was left out.

    Empty captions, items without captions, and all items of an id but the first are skipped and listed in
    `corpus.skipped.jsonl`. A corpus that is there already is replaced.

    Args:
        folder: the corpus; made where it does not exist.
        items: what a reader yields.
        source: reader and files; anything that JSON can hold.
        images: the folder that relative paths of items start from.

    Raises:
        InputError: nothing usable came, or no space is left.
    """
    folder, log, splits, captions = make_folder(folder), SkipLog(), Counter[str](), 0
    with atomic(folder / _TABLE) as file, pa.ipc.new_file(file, _SCHEMA) as table:
        usable = _usable(items, log)
        while batch := list(islice(usable, _BATCH)):
            splits.update(item.split for item in batch)
            captions += sum(len(item.captions) for item in batch)
            table.write_batch(_record_batch(batch))
        if not splits:
            raise InputError(f"{folder}: nothing usable was found; {describe(log.summary())}")
    summary = Summary(splits=dict(splits), captions=captions, skipped=log.close(folder / SKIPPED))
    manifest = {
        "version": VERSION,
        "source": source,
        "images": str(Path(images).resolve()) if images else "",
        "sha256": sha256(folder / _TABLE),
    }
    write_json(folder / _MANIFEST, manifest | asdict(summary))
    return summary


def _usable(items: Iterable[Item | Skipped], log: SkipLog) -> Iterator[Item]:
    seen: set[str] = set()
    for given in items:
        for entry in [given] if isinstance(given, Skipped) else clean(given):
            if isinstance(entry, Skipped):
                log.add(entry)
            elif entry.id in seen:
                log.add(Skipped(where=f"id {entry.id}", why="duplicate id; the first is kept"))
            else:
                seen.add(entry.id)
                yield entry


def _record_batch(items: list[Item]) -> pa.RecordBatch:
    columns = [pa.array([getattr(item, field.name) for item in items], field.type) for field in _SCHEMA]
    return pa.record_batch(columns, schema=_SCHEMA)


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, or bytes that were no UTF-8
        return False
    return True


class Corpus:
    """A corpus on disk; open it with `Corpus.open`."""

    texts = "captions"

    def __init__(self, folder: Path, manifest: dict[str, Any], table: pa.Table) -> None:
        self.folder = folder
        self.manifest = manifest
        self._table = table

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open the corpus in `folder`.

        Raises:
            InputError: there is none, it is half written or of another version, or its bytes were changed.
        """
        folder = Path(folder)
        return cls(folder, *open_table(folder, name=NAME, version=VERSION, what="a corpus"))

    @property
    def splits(self) -> dict[str, int]:
        """Number of items in each split."""
        return self.manifest["splits"]

    @property
    def digest(self) -> str:
        """SHA-256 of `corpus.arrow`: equal for equal items, whatever their source."""
        return self.manifest["sha256"]

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all splits, in the order of the file."""
        return self._table["id"]

    def items(self, split: str) -> list[Item]:
        """Return the items of a split, in the order of the file.

        Raises:
            InputError: the corpus has no such split, or nothing in it.
        """
        if not self.splits.get(split):
            there = ", ".join(f"{name} ({count:,})" for name, count in self.splits.items())
            raise InputError(f"{self.folder}: no items in the split {split!r}; there are {there}")
        rows = self._table.filter(pc.equal(self._table["split"], split))
        ids = rows["caption_ids"].to_pylist() if "caption_ids" in rows.column_names else [()] * len(rows)
        columns = zip(*(rows[name].to_pylist() for name in ("id", "captions", "path")), ids, strict=True)
        return [
            Item(id=id, split=split, captions=tuple(texts), path=path, caption_ids=tuple(names))
            for id, texts, path, names in columns
        ]

    def image_path(self, item: Item) -> Path:
        """Return where the item's image is.

        Raises:
            InputError: the corpus came with features and has no images.
        """
        if not item.path:
            raise InputError(
                f"{self.folder}: the item {item.id} has no image: this corpus came with features"
            )
        return Path(self.manifest["images"]) / item.path
