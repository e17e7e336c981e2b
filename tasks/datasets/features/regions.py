"""Regions of bottom-up attention and of mmf: TSV files of numbers in base64, and LMDBs of pickled mappings.

A TSV file has no header and one image a line: image id, width, height, number n of boxes, boxes (float32, n x 4),
features (float32, n x D). Published are files with 36 boxes an image and with 10 to 100. Some have damaged rows and
ids that come twice: those are skipped.

In an LMDB, as mmf and the codes of ViLBERT write them, the key of a mapping is the image's id, or with mmf the path of
the file that the features came from, of which the name is the id. It holds `features` `(N, D)`, boxes in pixels as
`bbox` or `boxes` `(N, 4)`, and the picture's size as `image_width` and `image_height`, or `image_w` and `image_h`;
ViLBERT's published files have features and boxes as float32 in base64.

Boxes become the column `boxes` of the store: left, top, right and bottom as fractions of the picture's sides;
where they are missing or cannot be read, the set is kept with zeros in it, and listed.

Source: Anderson et al., "Bottom-up and top-down attention for image captioning and visual question answering", CVPR
2018; the file layouts of mmf (Singh et al.) and of "12-in-1: Multi-task vision and language representation learning",
Lu et al., CVPR 2020.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.extras import needed
from polypool.infra.files import identity
from polypool.infra.limits import LARGEST_LINE
from polypool.infra.pictures.boxes import fractions
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.infra.untrusted_arrays import read_plain_pickle
from polypool.tasks.datasets import Features, Reading
from polypool.tasks.datasets.features.sources import PATTERNS, FileReader, files_of

_COLUMNS = 6
_LIST = b"keys"  # the key of the list of all others in an LMDB, which is no image


@READERS.register("butd")
@dataclass(frozen=True, kw_only=True)
class Butd(FileReader):
    """Read bottom-up-attention features from TSV files, into a store."""

    dim: int = 2048
    """Width of the features; a row with another number of bytes is skipped."""

    def read(self) -> Reading:
        """Return the sets of all files, in their order."""
        files = files_of(
            self.file,
            self.dir,
            pattern=PATTERNS["butd"],
            what="TSV files of bottom-up-attention features",
        )
        return Reading(rows=self._sets(files), source={"files": identity(*files), "dim": self.dim})

    def _sets(self, files: list[Path]) -> Iterator[Features | Skipped]:
        size = sum(path.stat().st_size for path in files)
        with Progress(total=size, desc="rows", unit="B", scale=True) as bar:
            for path in files:
                for number, line in enumerate(_lines(path), 1):
                    bar.update(len(line))
                    yield _row(line, where=f"{path.name}:{number}", dim=self.dim)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(LARGEST_LINE):
            if len(line) == LARGEST_LINE:
                raise InputError(f"{path}: a line of over {LARGEST_LINE:,} bytes; expected a TSV of features")
            yield line


def _row(line: bytes, *, where: str, dim: int) -> Features | Skipped:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != _COLUMNS:
        return Skipped(where=where, why=f"not {_COLUMNS} columns, such as a row that is cut short")
    id = columns[0].decode("utf-8", "surrogateescape").strip()
    where = f"{where} (id {id})"
    try:
        boxes = int(columns[3])
        data = base64.b64decode(columns[5], validate=True)
    except binascii.Error:
        return Skipped(where=where, why="features that are not valid base64")
    except ValueError:
        return Skipped(where=where, why="a number of boxes that is not a number")
    if boxes < 1 or len(data) != boxes * dim * 4:
        return Skipped(where=where, why=f"features of another size than boxes x {dim} (--dim) x 4 bytes")
    x_ND = np.frombuffer(data, "<f4").reshape(boxes, dim)
    try:
        width, height = float(columns[1]), float(columns[2])
    except ValueError:
        width = height = 0.0
    box_N4 = fractions(_array(columns[4], boxes), boxes, width=width, height=height)
    return Features.with_boxes(id, x_ND, box_N4, where=where)


@READERS.register("lmdb")
@dataclass(frozen=True, kw_only=True)
class Lmdb(FileReader):
    """Read regions from LMDBs of mmf or ViLBERT, into a store; nothing in them is run."""

    def read(self) -> Reading:
        """Return the sets in the order of the keys."""
        files = files_of(self.file, self.dir, pattern=PATTERNS["lmdb"], what="the data.mdb of an LMDB")
        return Reading(rows=chain.from_iterable(map(_sets, files)), source={"files": identity(*files)})


def _sets(path: Path) -> Iterator[Features | Skipped]:
    """Yield the sets.

    Raises:
        InputError: it is no LMDB, or the package that reads them is missing.
    """
    with needed("lmdb"):
        import lmdb
    try:
        with (
            lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False) as opened,
            opened.begin() as reading,
        ):
            total = reading.stat()["entries"]
            for key, value in Progress(reading.cursor(), desc="images", unit="image", total=total):
                if bytes(key) != _LIST:
                    yield _set(bytes(key), bytes(value))
    except lmdb.Error as error:
        raise InputError(f"{path}: cannot be read as an LMDB: {error}; expected a data.mdb") from error


def _set(key: bytes, value: bytes) -> Features | Skipped:
    where = key.decode("utf-8", "surrogateescape")
    try:
        held = read_plain_pickle(value)
    except InputError as error:
        return Skipped(where=where, why=str(error))
    if not isinstance(held, dict) or "features" not in held:
        return Skipped(where=where, why="no mapping with `features`")
    boxes = next((held[name] for name in ("bbox", "boxes") if held.get(name) is not None), None)
    count = held.get("num_boxes")
    x_ND, box_N4 = _array(held["features"], count), _array(boxes, count)
    if x_ND is None:
        why = "features that are no array (N, D), nor one in base64 with `num_boxes`"
        return Skipped(where=where, why=why)
    box_N4 = fractions(box_N4, len(x_ND), width=_side(held, "width", "w"), height=_side(held, "height", "h"))
    return Features.with_boxes(PurePosixPath(where).name, x_ND, box_N4, where=where)


def _array(value: Any, count: Any) -> np.ndarray | None:
    """Return an array as it is, or float32 in base64 as `count` rows; None for anything else."""
    if isinstance(value, np.ndarray):
        return value if value.ndim == 2 and value.dtype.kind in "fiu" else None
    if not isinstance(value, str | bytes) or type(count) is not int or count < 1:
        return None
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return np.frombuffer(data, "<f4").reshape(count, -1) if len(data) % (4 * count) == 0 and data else None


def _side(held: Mapping[str, Any], *names: str) -> float:
    """Return a side of the picture in pixels; 0 where it is missing."""
    found = next((held[f"image_{name}"] for name in names if f"image_{name}" in held), 0)
    return float(found) if isinstance(found, int | float | np.number) else 0.0
