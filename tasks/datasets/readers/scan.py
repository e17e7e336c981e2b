"""SCAN's precomputed features: `{split}_ims.npy`, `{split}_caps.txt` and `{split}_ids.txt` in one folder.

`ims` is `(M, N, D)` (or `(M, D)`: one vector per image). The captions of an image are consecutive lines of `caps`, five
in the published files. `ims` and `ids` have one row per image or one per caption; the lengths of the three files tell
which. Without `ids`, as in VSE++'s files, images are numbered, `train_0`, and consecutive equal rows belong to one
image. The splits are `train`, `dev` (here `val`), `test` and, for COCO, `testall`, whose first fold is `test`.

Source: Lee et al., "Stacked cross attention for image-text matching", ECCV 2018.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity
from polypool.infra.process.progress import Progress
from polypool.infra.storage import Url, place
from polypool.infra.store import StoreWriter
from polypool.infra.store.findings import USUAL, Flagged, Skipped, Tolerance
from polypool.infra.store.manifest import Manifest
from polypool.tasks.datasets.annotations import map_array
from polypool.tasks.datasets.corpus import Corpus, CorpusSummary, Item, write_corpus
from polypool.tasks.datasets.features import files_of, mapped_rows

_SPLITS = {"train": "train", "dev": "val", "val": "val", "test": "test", "testall": "test"}
_SAMPLE = 64  # images whose repeated rows are compared


@dataclass(frozen=True, kw_only=True)
class ScanSplit:
    """The aligned files of a split: ims, caps and, optionally, ids.

    Args:
        name: as in the file names.
        files: their paths.
        ids: one per image.
        captions: lines of `caps` per image.
        repeat: equal rows of `ims` per image.
        dim: width D of the features.
    """

    name: str
    files: tuple[Path, ...]
    ids: list[str]
    captions: int
    repeat: int
    dim: int

    def __iter__(self) -> Iterator[tuple[Item, np.ndarray]]:
        """Yield each image's item and its set `(N, D)`, a view of the file."""
        rows = mapped_rows(self.files[0], what="SCAN's features", each=self.repeat)
        with self.files[1].open("rb") as lines:
            for id, row in zip(self.ids, rows, strict=True):
                texts = islice(lines, self.captions)
                captions = tuple(text.decode("utf-8", "surrogateescape") for text in texts)
                yield Item(id=id, split=_SPLITS[self.name], captions=captions), np.atleast_2d(row)


def open_scan(file: Sequence[Path] = (), dir: Path | None = None) -> list[ScanSplit]:
    """Open the splits of some `*_ims.npy`, or of all in a folder; `testall` replaces `test`, which is a part of it.

    Raises:
        InputError: no split, a missing or damaged file, or lengths that do not fit.
    """
    what = f"a {{{','.join(_SPLITS)}}}_ims.npy of SCAN's features"
    paths = files_of(file, dir, pattern=rf"^({'|'.join(_SPLITS)})_ims\.npy$", what=what, deep=False)
    names = {path.name.removesuffix("_ims.npy"): path for path in paths}
    if odd := {*names} - {*_SPLITS}:
        raise InputError(f"{names[min(odd)]}: expected {what}")
    if "testall" in names:
        names.pop("test", None)
    return [_open(names[name].parent, name) for name in _SPLITS if name in names]


def _open(folder: Path, name: str) -> ScanSplit:
    ims, caps, ids = (folder / f"{name}_{part}" for part in ("ims.npy", "caps.txt", "ids.txt"))
    existing(caps, what=f"the captions of {ims.name}")
    rows = map_array(ims, what="SCAN's features")
    if rows.ndim not in (2, 3) or rows.dtype.kind != "f" or not rows.size:
        raise InputError(f"{ims}: {rows.dtype} of shape {rows.shape}, expected floats of shape (M, N, D)")
    with caps.open("rb") as lines:
        count = sum(1 for _ in lines)
    numbered = not ids.exists()
    if numbered:
        each = next((n for n in range(1, len(rows)) if not np.array_equal(rows[n], rows[0])), len(rows))
        names = [f"{name}_{number}" for number in range(len(rows) // (each if len(rows) == count else 1))]
    else:
        names = ids.read_text("utf-8", "surrogateescape").split()
    captions, repeat, names = _aligned(rows, names, captions=count, where=folder / name)
    return ScanSplit(
        name=name,
        files=(ims, caps) if numbered else (ims, caps, ids),
        ids=names,
        captions=captions,
        repeat=repeat,
        dim=rows.shape[-1],
    )


def _aligned(rows: np.ndarray, ids: list[str], *, captions: int, where: Path) -> tuple[int, int, list[str]]:
    """Return the number of captions per image, of rows per image, and one id per image.

    Raises:
        InputError: the lengths do not fit, or repeated rows or ids differ.
    """
    lengths = f"{where}_*: {len(rows):,} rows, {captions:,} captions, {len(ids):,} ids"
    each = captions // max(1, len(ids))
    if ids and len(ids) == captions:  # an id for each caption
        each = next((i for i, id in enumerate(ids) if id != ids[0]), len(ids))
    images = captions // max(1, each)
    fits = each and images * each == captions
    if not fits or not {len(ids), len(rows)} <= {images, captions}:
        raise InputError(
            f"{lengths}: these do not fit. Expected equally many captions for each image, and rows and ids "
            f"once an image or once a caption; ids name images"
        )
    repeat, ids_each = len(rows) // images, len(ids) // images
    for index in np.linspace(0, images - 1, min(images, _SAMPLE)).astype(int) * repeat:
        if not np.array_equal(rows[index], rows[index + repeat - 1], equal_nan=True):
            raise InputError(
                f"{lengths}: expected each row {repeat} times, but those from {index:,} on differ"
            )
    if each == 1 and images > 1 and np.array_equal(rows[0], rows[1]):
        raise InputError(
            f"{lengths}: the first two rows are the same image and their ids differ; take the ids away, and "
            "images are numbered"
        )
    names = ids[::ids_each]
    if [id for id in names for _ in range(ids_each)] != ids:
        raise InputError(f"{lengths}: expected each id {ids_each} times in a row")
    return each, repeat, names


def write_scan(
    splits: Sequence[ScanSplit],
    *,
    out: str | Path | Url,
    dtype: str = "float16",
    tolerance: Tolerance = USUAL,
    replace: bool = False,
) -> tuple[CorpusSummary, Manifest]:
    """Write a corpus to `out` and the features of its items to the store `out/regions`, in one pass.

    An image with invalid features, or without a valid caption, is left out of both.

    Raises:
        InputError: as in `write_corpus` and `StoreWriter`.
    """
    source = {"reader": "scan", "files": [file for split in splits for file in identity(*split.files)]}
    store, dim, replaces = place(out) / "regions", splits[0].dim, "complete" if replace else "unfinished"
    with StoreWriter(store, dim=dim, dtype=dtype, source=source, replaces=replaces) as writer:
        summary = write_corpus(out, _stored(splits, writer), source=source, tolerance=tolerance)
        return summary, writer.close(statistics_of=Corpus.open(out).training_ids(), tolerance=tolerance)


def _stored(splits: Sequence[ScanSplit], writer: StoreWriter) -> Iterator[Item | Skipped | Flagged]:
    """Store the features of all items, and yield the items whose features are valid."""
    for split in splits:
        if split.name == "testall" and split.files[0].with_name("test_ims.npy").exists():
            yield Skipped(where="test_*", why="the first fold of testall, which is read", wanted=False)
        for item, x_ND in Progress(split, desc=split.name, unit="image", total=len(split.ids)):
            for entry in Corpus.clean(item):
                if not isinstance(entry, Item):
                    yield entry
                    continue
                why = writer.offer(item.id, x_ND, where=f"{split.name}_ims.npy, id {item.id}")
                where = f"id {item.id}"
                yield Skipped(where=where, why=f"features: {why}", split=item.split) if why else entry
