"""Images and videos with captions in one form, whatever format they were published in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from polypool.infra.storage import Url
from polypool.infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from polypool.infra.store.ids import IdSet, wrong_id
from polypool.tasks.datasets.annotations import plain, wrong_path
from polypool.tasks.datasets.stored_corpus import StoredCorpus, Summary, TableManifest, shared_rows

__all__ = ["Corpus", "CorpusSummary", "Flagged", "Item", "Skipped", "Tolerance", "write_corpus"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One image or video of a corpus, with its captions.

    Args:
        id: unique in the corpus, and the id of its features in a feature store.
        split: `train`, `val` to choose the best epoch, or `test`; others are kept, and scored with `--split NAME`.
        captions: all of them, in the order of the source; at least one.
        path: the image, absolute or below the corpus's folder of images; empty where there are only features.
        caption_ids: the source's id of each caption; empty where it has none.
        sha256: of the file; `write_corpus` finds it, empty where there is no file.
    """

    id: str
    split: str
    captions: tuple[str, ...]
    path: str = ""
    caption_ids: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class CorpusSummary(Summary):
    """Counts of a corpus, with the number of captions in all splits."""

    captions: int


@dataclass(frozen=True, kw_only=True)
class _Manifest(TableManifest, CorpusSummary):
    images: str


class Corpus(StoredCorpus):
    """A corpus of items on disk; open it with `Corpus.open`."""

    name, what, units, texts, row, media = "corpus", "a corpus", ("items", "captions"), "captions", "id", "id"
    schema = pa.schema(
        [(name, pa.string()) for name in ("id", "split", "path")]
        + [(name, pa.list_(pa.string())) for name in ("captions", "caption_ids")]
        + [("sha256", pa.string())]
    )
    batch, images, manifest_kind = 4096, "images", _Manifest

    @staticmethod
    def clean(row: Item, *, images: str | Path = "") -> Iterator[Item | Skipped | Flagged]:
        """Yield what is wrong with an item and its captions, then the item with the good ones, spaces normalised."""
        odd_split = wrong_id(row.split, what="a split")
        if why := wrong_id(row.id) or odd_split or wrong_path(row.path, images=images):
            yield Skipped(where=f"id {row.id!r:.60}", why=why, split="" if odd_split else row.split)
            return
        where, ids, kept, captions = f"id {row.id}", row.caption_ids, [], []
        if ids and len(ids) != len(row.captions):
            yield Skipped(where=where, why="another number of captions than of their ids", split=row.split)
            return
        for number, caption in enumerate(row.captions):
            at = f"{where}, caption {number + 1}"
            text, odd = plain(caption, what="a caption")
            why = wrong_id(ids[number], what="an id of a caption") if ids else None
            if why or not text:
                yield Skipped(where=at, why=why or odd or "", part=True)
                continue
            kept.append(number)
            captions.append(text)
            if odd:
                yield Flagged(where=at, why=odd)
        if captions:
            yield replace(row, captions=tuple(captions), caption_ids=tuple(ids[each] for each in kept if ids))
        else:
            yield Skipped(where=where, why="no captions", split=row.split)

    @staticmethod
    def distinct(row: Item, known: IdSet) -> Iterator[Item | Skipped]:
        """Yield the captions whose ids others have, then the item without them."""
        if not row.caption_ids:
            yield row
            return
        fresh = [known.add(id) for id in row.caption_ids]
        for number in (number for number, new in enumerate(fresh, start=1) if not new):
            why = "a caption whose id another one has; the first is kept"
            yield Skipped(where=f"id {row.id}, caption {number}", why=why, part=True)
        if any(fresh):
            captions, ids = (tuple(compress(each, fresh)) for each in (row.captions, row.caption_ids))
            yield replace(row, captions=captions, caption_ids=ids)
        else:
            yield Skipped(where=f"id {row.id}", why="no captions", split=row.split)

    @staticmethod
    def key(row: Item) -> str:
        """Return the id."""
        return row.id

    @staticmethod
    def shared(table: pa.Table) -> Iterator[Flagged]:
        """Yield the captions that are also, letter by letter, in a split that models learn from."""
        frame = table.select(["id", "split", "captions"]).to_pandas().explode("captions")
        frame["number"] = frame.groupby(level=0).cumcount() + 1
        for fitted, other, _, found in shared_rows(frame, "captions"):
            for id, number in zip(found["id"], found["number"], strict=True):
                yield Flagged(
                    where=f"id {id}, caption {number}", why=f"the same caption in {fitted} and {other}"
                )

    @staticmethod
    def counts(table: pa.Table) -> tuple[dict[str, Any], int]:
        """Return the number of captions."""
        captions = pc.sum(pc.list_value_length(table["captions"])).as_py()
        return {"captions": captions}, captions

    def paths(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yield the id, path and SHA-256 of each image or video of a split, in their order, without holding all."""
        return self.rows(split, "id", "path", "sha256")

    def captions(self, split: str) -> Iterator[Sequence[str]]:
        """Yield the captions of each item of a split, in their order, without holding all."""
        return (captions for (captions,) in self.rows(split, "captions"))

    def caption_counts(self, split: str) -> list[int]:
        """Return how many captions each item of a split has, in their order."""
        self.check_split(split)
        table = self._table.filter(pc.equal(self._table["split"], split))
        return pc.list_value_length(table["captions"]).to_pylist()

    def items(self, split: str) -> list[Item]:
        """Return the items of a split, in the order of the file: seconds where they are hundreds of thousands."""
        return [Item(**record) for record in self.records(split)]

    def find(self, id: str) -> Item:
        """Return the item of an id, of any split; raises InputError where there is none."""
        return Item(**self._first(id))

    def count(self, split: str) -> int:
        """Return the number of items of a split."""
        return len(self._of(self._table, split))

    def some(self, split: str, places: Sequence[int]) -> list[Item]:
        """Return the items at some places of a split."""
        return [Item(**record) for record in self._records(self._of(self._table, split).take(places))]


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
    `polypool.tasks.run.Run` shows how to train on them::

        import numpy as np
        from polypool.infra.store import StoreWriter
        from polypool.tasks.datasets.corpus import Item, write_corpus

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
        tolerance: what may be left out, by default a twentieth of the items and of the captions, and whether what is
            odd is refused.

    Raises:
        InputError: nothing usable came, the tolerance is exceeded, or no space is left.
    """
    return CorpusSummary(**Corpus.write(folder, items, source=source, images=images, tolerance=tolerance))
