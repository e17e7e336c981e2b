"""Regions in LMDBs of mmf and ViLBERT."""

from __future__ import annotations

import base64
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from verbs import ingested, reasons, run, sets_of

from polypool.infra.store import FeatureStore

RANDOM = np.random.default_rng(0)
X_ND = RANDOM.standard_normal((2, 8)).astype(np.float32)
BOX_N4 = np.array([[0, 0, 640, 480], [160, 120, 320, 360]], np.float32)


def in_base64(x: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(x, "<f4").tobytes()).decode()


def mmf(**changed) -> dict:
    item = {"features": X_ND, "bbox": BOX_N4, "image_width": 640, "image_height": 480, "num_boxes": 2}
    return item | {"objects": np.array([3, 4]), "cls_prob": None, "feature_path": "x"} | changed


def vilbert(**changed) -> dict:
    item = {"image_id": "9", "features": in_base64(X_ND), "boxes": in_base64(BOX_N4), "num_boxes": 2}
    return item | {"image_w": 640, "image_h": 480} | changed


class Runs:
    def __reduce__(self):
        return print, ("ran",)


def written(folder: Path, items: dict[str, object]) -> Path:
    lmdb = pytest.importorskip("lmdb", reason="not installed (pip install 'polypool[lmdb]')")
    with lmdb.open(str(folder), map_size=1 << 24) as opened, opened.begin(write=True) as writing:
        for key, item in items.items():
            writing.put(key.encode(), item if isinstance(item, bytes) else pickle.dumps(item))
        writing.put(b"keys", pickle.dumps([key.encode() for key in items]))
    return folder


def test_regions_of_both_codes_are_read_with_their_boxes(tmp_path):
    items = {"train2014/COCO_train2014_1": mmf(), "2": vilbert(), "3": vilbert(features=X_ND, boxes=BOX_N4)}
    folder = written(tmp_path / "in", items)
    ingested("lmdb", "--dir", folder, "--out", tmp_path / "out", "--dtype", "float32")
    found = sets_of(tmp_path / "out")
    assert sorted(found) == ["2", "3", "COCO_train2014_1"]
    assert all(np.array_equal(x_ND, X_ND) for x_ND in found.values())
    boxes = FeatureStore.open(tmp_path / "out").column("boxes")
    assert all(boxes[row].tolist() == [[0, 0, 1, 1], [0.25, 0.25, 0.5, 0.75]] for row in range(3))


def test_what_cannot_be_read_is_listed_and_nothing_is_run(tmp_path):
    items = {
        "0": mmf(),
        "1": mmf(features=Runs()),
        "2": b"no pickle",
        "3": {"boxes": BOX_N4},
        "4": mmf(features=X_ND[0]),
        "5": vilbert(features="*"),
        "6": vilbert(num_boxes=0),
        "7": mmf(bbox=BOX_N4[:1]),
        "8": mmf(image_width=0),
        "9": mmf(bbox=None),
    }
    folder = written(tmp_path / "in", items)
    out = ingested("lmdb", "--dir", folder, "--out", tmp_path / "out", "--allow-skipped")
    assert "ran" not in out.split()
    assert sorted(sets_of(tmp_path / "out")) == ["0", "7", "8", "9"]
    none = "features that are no array (N, D), nor one in base64 with `num_boxes`"
    assert reasons(tmp_path / "out") == [
        ("1", "it names builtins.print, which is not run"),
        ("2", "it cannot be read as a pickle: KeyError"),
        ("3", "no mapping with `features`"),
        *((id, none) for id in ("4", "5", "6")),
    ]
    assert "3 x boxes that cannot be read; zeros are stored" in out


def test_what_is_no_lmdb_and_a_missing_package_are_said(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data.mdb").write_bytes(b"no lmdb" * 2000)
    if "lmdb" not in sys.modules:
        monkeypatch.setitem(sys.modules, "lmdb", None)
    code, _, error = run("lmdb", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert code == 2
    assert "cannot be read as an LMDB" in error or "pip install 'polypool[lmdb]'" in error
    assert run("lmdb", "--dir", tmp_path / "no", "--out", tmp_path / "out")[0] == 2
