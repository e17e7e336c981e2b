"""Features in one HDF5 file: a dataset `image_features`, and which row is which image.

Two layouts: `(n, N, D)`, a row an image; or, where there is a dataset `pos_boxes` `(n, 2)`, vectors
`(total, D)` of which image i has those from `pos_boxes[i, 0]` to before `pos_boxes[i, 1]`, as in adaptive
bottom-up features.

Source: the file layout of the public bottom-up-attention VQA baseline by Hengyuan Hu and others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from infra.errors import InputError
from infra.files import existing
from infra.store.findings import Skipped
from tasks.datasets.features.to_store import Features, as_set
from tasks.datasets.id_lists import as_text, read_id_rows

_BLOCK = 32 << 20  # bytes read at a time
_CACHE = 128 << 20  # bytes of decompressed chunks that HDF5 keeps
_POSITIONS, _IDS = "pos_boxes", "image_ids"


def read_hdf5(
    path: str | Path,
    *,
    ids: str | Path | None = None,
    key: str = "image_features",
    channels_first: bool = False,
) -> Iterator[Features | Skipped]:
    """Yield the sets of a file in the order in which they lie in it.

    Args:
        path: the HDF5 file.
        ids: `.json` with `{id: row}` or a list, `.npy` or `.txt` with an id a row; None: the dataset
            `image_ids`.
        key: the dataset of features.
        channels_first: each row is `(D, H, W)`.

    Raises:
        InputError: a file or dataset is missing or damaged, or the ids are a pickle.
    """
    path = existing(path, what="an HDF5 file of features")
    try:
        with h5py.File(path, "r", rdcc_nbytes=_CACHE) as file:
            features = _dataset(file, key, path)
            spans = file[_POSITIONS][:].reshape(-1, 2) if _POSITIONS in file else None
            count = len(features) if spans is None else len(spans)
            names: dict[int, str] = {}
            yield from _name_rows(_ids(ids, file, path), count=count, names=names)
            rows = _whole_rows(features) if spans is None else _spans(features, spans)
            for row, x in tqdm(rows, desc="rows", unit="row", total=count):
                where = f"{path.name}, row {row}"
                if row not in names:
                    yield Skipped(where=where, why="a row that has no id")
                elif x is None:
                    yield Skipped(
                        where=f"{where} (id {names[row]})", why=f"{_POSITIONS} beyond the vectors, or empty"
                    )
                else:
                    x_ND = as_set(x, channels_first=channels_first)
                    yield Features(id=names[row], x_ND=x_ND, where=f"{where} (id {names[row]})")
    except OSError as error:
        raise InputError(f"{path}: cannot be read as HDF5, it may be cut short: {error}") from error


def _dataset(file: h5py.File, key: str, path: Path) -> h5py.Dataset:
    dataset = file.get(key)
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim < 2:
        shapes = ", ".join(f"{name} {getattr(item, 'shape', '')}" for name, item in file.items())
        raise InputError(
            f"{path}: no dataset {key!r} of shape (n, N, D); --key names one of: {shapes or 'none'}"
        )
    return dataset


def _whole_rows(features: h5py.Dataset) -> Iterator[tuple[int, np.ndarray]]:
    step = max(1, _BLOCK // max(1, features[0:1].nbytes))
    for start in range(0, len(features), step):
        yield from enumerate(features[start : start + step], start)


def _spans(features: h5py.Dataset, spans: np.ndarray) -> Iterator[tuple[int, np.ndarray | None]]:
    for row in np.argsort(spans[:, 0], kind="stable").tolist():
        start, stop = spans[row].tolist()
        yield row, features[start:stop] if 0 <= start < stop <= len(features) else None


def _ids(ids: str | Path | None, file: h5py.File, path: Path) -> list[tuple[str, Any]]:
    """Return pairs of id and row."""
    if ids is not None:
        return read_id_rows(ids)
    if _IDS not in file:
        raise InputError(f"{path}: no dataset {_IDS!r}; give a file of ids with --ids (.json, .npy or .txt)")
    return [(as_text(id), row) for row, id in enumerate(file[_IDS][:].reshape(-1).tolist())]


def _name_rows(pairs: list[tuple[str, Any]], *, count: int, names: dict[int, str]) -> Iterator[Skipped]:
    """Fill `names`, row to id; yield the ids that name no row, or one that is taken."""
    for id, row in pairs:
        if not isinstance(row, int) or not 0 <= row < count:
            yield Skipped(where=f"id {id}", why=f"an id whose row is not one of 0 to {count - 1}")
        elif row in names:
            yield Skipped(where=f"id {id}", why="an id whose row has another id already")
        else:
            names[row] = id
