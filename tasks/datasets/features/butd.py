"""Bottom-up-attention features as TSV: one image a line, numbers in base64.

Tab-separated, without a header: image id, width, height, number n of boxes, boxes (float32, n x 4), features
(float32, n x D). Published are files with 36 boxes an image and with 10 to 100. Some have damaged rows and
ids that come twice: those are skipped. Boxes become the column `boxes` of the store: left, top, right and bottom as
fractions of the picture's width and height; where they cannot be read, the set is kept with zeros in it, and listed.

Source: Anderson et al., "Bottom-up and top-down attention for image captioning and visual question
answering", CVPR 2018.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity
from polypool.infra.pictures.boxes import fractions
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets.features import FeatureReader, Features, FeatureSets

_COLUMNS = 6
_LINE_LIMIT = 64 << 20  # bytes; a line of 100 boxes has about one million


@dataclass(frozen=True, kw_only=True)
class Butd(FeatureReader):
    """Read bottom-up-attention features from TSV files, into a store."""

    tsv: tuple[Path, ...]
    """One or several files."""
    dim: int = 2048
    """Width of the features; a row with another number of bytes is skipped."""

    def read(self) -> FeatureSets:
        """Return the sets of all files, in their order."""
        return FeatureSets(sets=self._sets(), source={"files": identity(*self.tsv)})

    def _sets(self) -> Iterator[Features | Skipped]:
        files = [existing(path, what="a TSV file of bottom-up-attention features") for path in self.tsv]
        size = sum(path.stat().st_size for path in files)
        with tqdm(total=size, desc="rows", unit="B", unit_scale=True) as bar:
            for path in files:
                for number, line in enumerate(_lines(path), 1):
                    bar.update(len(line))
                    yield _row(line, where=f"{path.name}:{number}", dim=self.dim)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(_LINE_LIMIT):
            if len(line) == _LINE_LIMIT:
                raise InputError(f"{path}: a line of over {_LINE_LIMIT:,} bytes; expected a TSV of features")
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
        return Skipped(where=where, why=f"features of another size than boxes x {dim} x 4 bytes")
    x_ND = np.frombuffer(data, "<f4").reshape(boxes, dim)
    return Features.with_boxes(id, x_ND, _boxes(columns, boxes), where=where)


def _boxes(columns: Sequence[bytes], count: int) -> np.ndarray | None:
    """Return the boxes of a row as fractions of the picture's sides, `(count, 4)`; None where they cannot be read."""
    try:
        width, height = float(columns[1]), float(columns[2])
        data = base64.b64decode(columns[4], validate=True)
    except ValueError:  # binascii.Error is one
        return None
    box_N4 = np.frombuffer(data, "<f4").reshape(-1, 4) if len(data) % 16 == 0 else None
    return fractions(box_N4, count, width=width, height=height)
