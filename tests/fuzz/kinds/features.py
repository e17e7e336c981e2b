"""Readers of published features: each `ingest` verb that writes a store."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from annotations import HGR_NAMES, write_hgr

from fuzz.cases import Kind, expect
from fuzz.damage.hdf5 import SECRET, SECRET_VALUE
from fuzz.kinds.results import ALL, OUT, store_of
from polypool.infra.registry import READERS
from polypool.infra.store import FeatureStore
from polypool.infra.untrusted_arrays import read_plain_pickle
from polypool.pipelines.data.ingestion import reader_verb

_RANDOM = np.random.default_rng(0)


def _ingest(form: str, **options: Any) -> None:
    reader_verb(form)(READERS.get(form)(**options), out=OUT, tolerance=ALL)


def _drawn(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _butd(folder: Path) -> None:
    rows = []
    for i in range(6):
        boxes = 1 + i % 3
        numbers = (base64.b64encode(_drawn(boxes, width).tobytes()).decode() for width in (4, 4))
        rows.append("\t".join([str(i), "640", "480", str(boxes), *numbers]))
    (folder / "features.tsv").write_text("\n".join(rows) + "\n")


def _read_butd(folder: Path) -> int:
    _ingest("butd", file=(folder / "features.tsv",), dim=4)
    return store_of(entries=(folder / "features.tsv").read_bytes().rstrip(b"\n").count(b"\n") + 1)


def _pickle(folder: Path) -> None:
    item = {"features": _drawn(3, 4), "bbox": _drawn(3, 4), "image_width": 640, "num_boxes": 3}
    (folder / "value.pkl").write_bytes(pickle.dumps(item | {"objects": np.arange(3), "cls_prob": None}))


def _read_pickle(folder: Path) -> int:
    held = read_plain_pickle((folder / "value.pkl").read_bytes())
    if isinstance(held, dict) and isinstance(x := held.get("features"), np.ndarray):
        expect(x.dtype.kind in "fiub", "an array of other things than numbers")
    return 0


def _secrets(folder: Path) -> None:
    """Write files of numbers that nothing names but a damaged file."""
    np.full(64, SECRET_VALUE, np.float32).tofile(folder / SECRET)
    with h5py.File(folder / "other.h5", "w") as file:
        file["image_features"] = np.full((3, 2, 4), SECRET_VALUE, np.float32)


def _keep_secrets() -> None:
    store = FeatureStore.open(OUT)
    kept = [(store[row] == SECRET_VALUE).any() for row in range(len(store))]
    expect(not any(kept), "read numbers of another file, which the HDF5 file refers to")


def _hdf5(folder: Path) -> None:
    _secrets(folder)
    with h5py.File(folder / "features.h5", "w") as file:
        file["image_features"] = _drawn(3, 2, 4)
        file["image_ids"] = np.array([7, 8, 9])


def _hdf5_spans(folder: Path) -> None:
    _secrets(folder)
    with h5py.File(folder / "features.h5", "w") as file:
        file.create_dataset("image_features", data=_drawn(7, 4), chunks=(2, 4), compression="gzip")
        file["pos_boxes"] = np.array([[0, 2], [2, 3], [3, 7]])
        file["spatials"] = _drawn(7, 6)
    (folder / "ids.json").write_text(json.dumps({"7": 0, "8": 1, "9": 2}))


def _read_hdf5(folder: Path) -> int:
    ids = folder / "ids.json"
    _ingest("hdf5", file=(folder / "features.h5",), ids=(ids,) if ids.exists() else ())
    _keep_secrets()
    return store_of()


def _arrays(folder: Path) -> None:
    (folder / "in").mkdir()
    for i in range(4):
        np.save(folder / "in" / f"{i}.npy", _drawn(2, 4))
    np.savez(folder / "in" / "4.npz", features=_drawn(2, 4), boxes=_drawn(2, 4))
    np.savez_compressed(folder / "in" / "5.npz", x=_drawn(3, 4))


def _read_arrays(folder: Path) -> int:
    _ingest("arrays", dir=folder / "in")
    return store_of(entries=6)


def _hgr_frames(folder: Path) -> None:
    _secrets(folder)
    write_hgr(folder)
    (folder / "SA").mkdir()
    for split, listed in HGR_NAMES.items():
        with h5py.File(folder / "SA" / f"{split}_ft.hdf5", "w") as file:
            for name in listed:
                file[name.replace("/", "_")] = _drawn(3, 4)


def _hgr_means(folder: Path) -> None:
    write_hgr(folder)
    (folder / "SA").mkdir()
    for split, listed in HGR_NAMES.items():
        np.save(folder / "SA" / f"{split}_ft.npy", _drawn(len(listed), 4))


def _read_hgr(folder: Path) -> int:
    _ingest("hgr-features", dir=folder / "SA", splits=folder / "public_split")
    _keep_secrets()
    return store_of()


_LISTS = {"public_split/trn_names.npy": "npy", "public_split/tst_names.npy": "npy"}
_FRAMES = {"SA/trn_ft.hdf5": "hdf5", "SA/tst_ft.hdf5": "hdf5"}
_MEANS = {"SA/trn_ft.npy": "npy", "SA/tst_ft.npy": "npy"}

_ARRAYS = {"in/0.npy": "npy", "in/3.npy": "npy", "in/4.npz": "npz", "in/5.npz": "npz"}
_SPANS = {"features.h5": "hdf5", "ids.json": "json"}

KINDS = [
    Kind(name="butd", make=_butd, read=_read_butd, damaged={"features.tsv": "lines"}),
    Kind(name="values of an LMDB", make=_pickle, read=_read_pickle, damaged={"value.pkl": "raw"}),
    Kind(name="hdf5", make=_hdf5, read=_read_hdf5, damaged={"features.h5": "hdf5"}),
    Kind(name="hdf5, pos_boxes", make=_hdf5_spans, read=_read_hdf5, damaged=_SPANS),
    Kind(name="arrays", make=_arrays, read=_read_arrays, damaged=_ARRAYS),
    Kind(name="hgr-features, SA", make=_hgr_frames, read=_read_hgr, damaged=_FRAMES | _LISTS),
    Kind(name="hgr-features, MP", make=_hgr_means, read=_read_hgr, damaged=_MEANS | _LISTS),
]
