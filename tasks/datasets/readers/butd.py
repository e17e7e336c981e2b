"""Regions of bottom-up attention: TSV files of numbers in base64.

A file has no header and one image per line: image id, width, height, number n of boxes, boxes (float32, n x 4),
features (float32, n x D). The published files have 36 or 10 to 100 boxes per image, and some damaged rows and duplicate
ids, which are skipped.

Boxes become the column `boxes` of the store: left, top, right and bottom as fractions of the picture's sides.
Unreadable boxes are stored as zeros, with a warning.

Source: Anderson et al., "Bottom-up and top-down attention for image captioning and visual question answering", CVPR
2018.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polypool.infra.files import identity
from polypool.infra.pictures import fractions
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Features, Reading
from polypool.tasks.datasets.features import PATTERNS, FileReader, files_of

_COLUMNS = 6


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
                with path.open("rb") as lines:
                    for number, line in enumerate(lines, 1):
                        bar.update(len(line))
                        yield _row(line, where=f"{path.name}:{number}", dim=self.dim)


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
    box_N4 = None
    with suppress(ValueError):
        box_N4 = np.frombuffer(base64.b64decode(columns[4], validate=True), "<f4").reshape(boxes, 4)
    box_N4 = fractions(box_N4, boxes, width=width, height=height)
    return Features.with_boxes(id, x_ND, box_N4, where=where)
