"""Features in one HDF5 file: a dataset `image_features`, and which row is which image.

Two layouts: `(n, N, D)`, a row an image; or, where there is a dataset `pos_boxes` `(n, 2)`, vectors
`(total, D)` of which image i has those from `pos_boxes[i, 0]` to before `pos_boxes[i, 1]`, as in adaptive
bottom-up features.

A dataset `spatial_features`, of as many elements, has first the left, top, right and bottom of each region as fractions
of the picture's sides; these become the column `boxes`.

Source: the file layout of the public bottom-up-attention VQA baseline by Hengyuan Hu and others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from polypool.infra.errors import InputError
from polypool.infra.files import identity
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets.annotation_files import as_text, read_id_rows
from polypool.tasks.datasets.features import FeatureReader, Features, FeatureSets, as_set
from polypool.tasks.datasets.features.hdf5_file import Hdf5Data, Hdf5File

_BLOCK = 32 << 20  # bytes read at a time
_POSITIONS, _IDS, _SPATIAL = "pos_boxes", "image_ids", "spatial_features"


@dataclass(frozen=True, kw_only=True)
class Hdf5(FeatureReader):
    """Read features from an HDF5 file, into a store."""

    file: Path
    """The HDF5 file."""
    ids: Path | None = None
    """.json with {id: row} or a list of ids, .npy or .txt of ids; by default the dataset image_ids."""
    key: str = "image_features"
    """The dataset of features."""
    channels_first: bool = False
    """Rows are (D, H, W)."""

    def read(self) -> FeatureSets:
        """Return the sets in the order in which they lie in the file."""
        files = identity(*(path for path in (self.file, self.ids) if path))
        source = {"files": files, "key": self.key, "channels_first": self.channels_first}
        return FeatureSets(sets=self._sets(), source=source)

    def _sets(self) -> Iterator[Features | Skipped]:
        with Hdf5File(self.file, what="an HDF5 file of features") as file:
            features, spans = _features(file, self.key), _positions(file)
            boxes = _boxes(file, features, channels_first=self.channels_first)
            count = len(features) if spans is None else len(spans)
            names: dict[int, str] = {}
            for id, row in _ids(self.ids, file):
                if not isinstance(row, int) or not 0 <= row < count:
                    yield Skipped(where=f"id {id}", why=f"an id whose row is not one of 0 to {count - 1}")
                elif row in names:
                    yield Skipped(where=f"id {id}", why="an id whose row has another id already")
                else:
                    names[row] = id
            for row, x, box_N4 in tqdm(_rows(features, boxes, spans), desc="rows", unit="row", total=count):
                where = f"{file.path.name}, row {row}"
                if row not in names:
                    yield Skipped(where=where, why="a row that has no id")
                    continue
                id, where = names[row], f"{where} (id {names[row]})"
                if x is None:
                    yield Skipped(where=where, why=f"{_POSITIONS} beyond the vectors, or empty")
                    continue
                x_ND = as_set(x, channels_first=self.channels_first)
                if box_N4 is None:
                    yield Features(id=id, x_ND=x_ND, where=where)
                else:
                    finite = box_N4.astype(np.float32) if np.isfinite(box_N4).all() else None
                    yield Features.with_boxes(id, x_ND, finite, where=where)


def _rows(
    features: Hdf5Data, boxes: Hdf5Data | None, spans: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray | None, np.ndarray | None]]:
    """Yield each row's number, its vectors, None where `spans` leads beyond them, and its boxes, None without any."""

    def between(start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        return features.rows(start, stop), None if boxes is None else boxes.rows(start, stop)[..., :4]

    if spans is None:
        step = max(1, _BLOCK // max(1, features.row_bytes))
        for start in range(0, len(features), step):
            x, box = between(start, start + step)
            for number, of_row in enumerate(x):
                yield start + number, of_row, None if box is None else box[number]
        return
    for row in np.argsort(spans[:, 0], kind="stable").tolist():
        start, stop = spans[row].tolist()
        if 0 <= start < stop <= len(features):
            yield row, *between(start, stop)
        else:
            yield row, None, None


def _features(file: Hdf5File, key: str) -> Hdf5Data:
    data = file.data(key)
    if data is None or len(data.shape) < 2:
        raise InputError(
            f"{file.path}: no dataset {key!r} of shape (n, N, D); --key names one of: {file.described()}"
        )
    if data.dtype.kind not in "fiu" or 0 in data.shape:
        raise InputError(f"{file.path}: {key!r} holds {data.dtype} of shape {data.shape}, expected numbers")
    return data


def _positions(file: Hdf5File) -> np.ndarray | None:
    """Return where each image's vectors begin and end, `(n, 2)`; None where each row is an image."""
    if _POSITIONS not in file.names():
        return None
    data = file.data(_POSITIONS)
    if data is None or data.dtype.kind not in "iu" or len(data.shape) != 2 or data.shape[1] != 2:
        raise InputError(
            f"{file.path}: {_POSITIONS} is {_found(data)}, expected whole numbers of shape (n, 2): where the vectors "
            "of each image begin and end"
        )
    return data.whole()


def _boxes(file: Hdf5File, features: Hdf5Data, *, channels_first: bool) -> Hdf5Data | None:
    """Return the boxes of all elements; None where there are none, with a note where the data set is something else."""
    if _SPATIAL not in file.names():
        return None
    data = file.data(_SPATIAL)
    if (
        data is not None
        and data.dtype.kind == "f"
        and data.shape[:-1] == features.shape[:-1]
        and data.shape[-1] >= 4
        and not (channels_first and len(features.shape) > 3)
    ):
        return data
    print(
        f"note: {_SPATIAL} is {_found(data)}, which is no box of each element; it is left out",
        file=sys.stderr,
    )
    return None


def _found(data: Hdf5Data | None) -> str:
    return "something else" if data is None else f"{data.dtype} of shape {data.shape}"


def _ids(ids: Path | None, file: Hdf5File) -> list[tuple[str, Any]]:
    """Return pairs of id and row."""
    if ids is not None:
        return read_id_rows(ids)
    data = file.data(_IDS)
    if data is None:
        raise InputError(
            f"{file.path}: no dataset {_IDS!r}; give a file of ids with --ids (.json, .npy or .txt)"
        )
    if data.dtype.kind not in "iuS" and h5py.check_string_dtype(data.dtype) is None:
        raise InputError(
            f"{file.path}: {_IDS!r} holds {data.dtype}, expected whole numbers or text; give --ids"
        )
    return [(as_text(id), row) for row, id in enumerate(data.whole().reshape(-1).tolist())]
