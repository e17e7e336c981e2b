"""Image-text and video-text annotations in one form, whatever format they were published in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from infra.errors import InputError
from infra.storage.places import Url
from infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from infra.store.ids import is_unicode, wrong_id
from tasks.datasets.audit import shared_captions, shared_files
from tasks.datasets.rows import plain, wrong_path
from tasks.datasets.tables import Format, StoredTable, TableManifest, write_table

__all__ = ["Corpus", "CorpusSummary", "Flagged", "Item", "Skipped", "Tolerance", "clean", "write_corpus"]

FORMAT = Format(
    name="corpus",
    what="a corpus",
    rows="items",
    parts="captions",
    schema=pa.schema(
        [
            ("id", pa.string()),
            ("split", pa.string()),
            ("path", pa.string()),
            ("captions", pa.list_(pa.string())),
            ("caption_ids", pa.list_(pa.string())),
        ]
    ),
    batch=4096,
    images="images",
    optional=("caption_ids",),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One image or video of a corpus, with its captions.

    Args:
        id: unique in the corpus, and the id of its features in a feature store.
        split: `train` to learn from, `val` to choose the best epoch, `test` to score once; other names are kept and
            scored where a verb is told so with `--split`.
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
class CorpusSummary:
    """What a corpus holds: items per split, captions in all, and what was left out or is odd, as `Findings` has it."""

    splits: dict[str, int]
    captions: int
    skipped: dict[str, Any]
    flagged: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Manifest(TableManifest, CorpusSummary):
    images: str


def clean(item: Item, *, images: str | Path = "") -> Iterator[Item | Skipped | Flagged]:
    """Yield what is wrong with an item and its captions, and then the item with those that are good.

    Runs of whitespace become one space.

    Args:
        item: what a reader made.
        images: the folder that its path starts from.
    """
    if why := wrong_id(item.id) or wrong_path(item.path, images=images):
        yield Skipped(where=f"id {item.id!r:.60}", why=why, split=item.split)
        return
    if not all(map(is_unicode, (item.split, *item.caption_ids))):
        yield Skipped(where=f"id {item.id}", why="a split or id of a caption that is not valid UTF-8")
        return
    captions, numbers = [], []
    for number, caption in enumerate(item.captions):
        where = f"id {item.id}, caption {number + 1}"
        caption, odd = plain(caption, what="caption")
        if not caption:
            yield Skipped(where=where, why="empty caption", part=True)
        elif not is_unicode(caption):
            yield Skipped(where=where, why="caption that is not valid UTF-8", part=True)
        else:
            captions.append(caption)
            numbers.append(number)
            if odd:
                yield Flagged(where=where, why=odd)
    if not captions:
        yield Skipped(where=f"id {item.id}", why="no captions", split=item.split)
    else:
        ids = tuple(item.caption_ids[number] for number in numbers) if item.caption_ids else ()
        yield replace(item, captions=tuple(captions), caption_ids=ids)


def write_corpus(
    folder: str | Path | Url,
    items: Iterable[Item | Skipped | Flagged],
    *,
    source: dict[str, Any],
    images: str | Path = "",
    tolerance: Tolerance = USUAL,
) -> CorpusSummary:
    """Write a corpus from a stream of items: `corpus.arrow`, then `corpus.json`, and what was left out or is odd.

    Empty captions, items without captions, and all items of an id but the first are skipped and listed in
    `corpus.skipped.jsonl`; captions without a word, or cut to 1,000, and pictures and captions that splits share are
    listed in `corpus.warnings.jsonl`. A corpus that is there already is replaced.

    A corpus from nothing, and features of its items, which a feature store keeps apart, by the items' ids;
    `tasks.run.Run` shows how to train on them::

        import numpy as np
        from infra.store import StoreWriter
        from tasks.datasets.corpus import Item, write_corpus

        items = [
            Item(id=f"{split}-{n}", split=split, captions=(f"picture {n}", f"number {n} of {split}"))
            for split in ("train", "val", "test")
            for n in range(40)
        ]
        write_corpus("data/mine", items, source={"made": "by hand"})
        rng = np.random.default_rng(0)
        with StoreWriter("data/mine-features", dim=16, dtype="float32", source={"made": "by hand"}) as writer:
            for item in items:  # each a set (N, 16); N may vary
                writer.add(item.id, rng.normal(size=(rng.integers(3, 9), 16)).astype(np.float32))
            writer.close(statistics_of=[item.id for item in items if item.split == "train"])

    Args:
        folder: the corpus; made where it does not exist.
        items: what a reader yields.
        source: reader and files; anything that JSON can hold.
        images: the folder that relative paths of items start from, and that no path leaves.
        tolerance: what may be left out, a twentieth of the items and of the captions unless it says otherwise, and
            whether what is odd is refused.

    Raises:
        InputError: nothing usable came, the tolerance is exceeded, or no space is left.
    """
    return write_table(
        folder,
        items,
        form=FORMAT,
        clean=partial(clean, images=images),
        key=lambda item: item.id,
        duplicate=lambda item: Skipped(
            where=f"id {item.id}", why="duplicate id; the first is kept", split=item.split
        ),
        audit=partial(_audit, images=images),
        tally=_ItemTally(),
        source=source,
        images=images,
        tolerance=tolerance,
    )


class _ItemTally:
    def __init__(self) -> None:
        self.splits, self.parts = Counter[str](), 0

    def add(self, items: list[Item]) -> None:
        self.splits.update(item.split for item in items)
        self.parts += sum(len(item.captions) for item in items)

    def summary(self, *, skipped: dict[str, Any], flagged: dict[str, Any]) -> CorpusSummary:
        return CorpusSummary(splits=dict(self.splits), captions=self.parts, skipped=skipped, flagged=flagged)


def _audit(table: pa.Table, *, images: str | Path) -> Iterator[Flagged]:
    yield from shared_captions(table)
    yield from shared_files(table, id="id", images=images)


class Corpus(StoredTable):
    """A corpus on disk; open it with `Corpus.open`. Its rows are items."""

    form, manifest_kind, media = FORMAT, _Manifest, "id"
    texts = "captions"

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all splits, in the order of the file."""
        return self._table["id"]

    def paths(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the id and path of each image or video of a split, in the order of the file, without holding them all.

        Raises:
            InputError: the corpus has no such split, or nothing in it.
        """
        return self.rows(split, "id", "path")

    def items(self, split: str) -> list[Item]:
        """Return the items of a split, in the order of the file.

        Raises:
            InputError: the corpus has no such split, or nothing in it.
        """
        rows = self.of_split(split)
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
        return Path(self.image_folder) / item.path
