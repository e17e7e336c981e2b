import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from verbs import ingested, reasons, refused, sets_of

from polypool.infra.store import FeatureStore
from polypool.tasks.datasets.corpus import Skipped
from polypool.tasks.datasets.features import Features
from polypool.tasks.datasets.readers.hdf5 import Hdf5

RANDOM = np.random.default_rng(0)


def write_hdf5(folder: Path, **datasets: np.ndarray) -> Path:
    with h5py.File(folder / "train.hdf5", "w") as file:
        for name, data in datasets.items():
            file[name] = data
    return folder / "train.hdf5"


def test_hdf5_ids_are_read_from_every_format(tmp_path, monkeypatch):
    monkeypatch.setattr("polypool.tasks.datasets.readers.hdf5._BLOCK", 300)  # three rows at a time
    features = RANDOM.standard_normal((5, 3, 8)).astype(np.float32)
    ids = [9, 7, 5, 3, 1]
    rows = {str(id): row for row, id in reversed(list(enumerate(ids)))}
    (tmp_path / "map.json").write_text(json.dumps(rows))
    (tmp_path / "list.json").write_text(json.dumps(ids))
    (tmp_path / "ids.txt").write_text("\n".join(map(str, ids)))
    np.save(tmp_path / "ids.npy", ids)
    named = [{"ids": (tmp_path / name,)} for name in ("map.json", "list.json", "ids.txt", "ids.npy")]
    inside = (np.array(ids), np.array([str(id) for id in ids], "S"))
    for given, options in [({}, each) for each in named] + [({"image_ids": each}, {}) for each in inside]:
        path = write_hdf5(tmp_path, image_features=features, **given)
        found = list(Hdf5(file=(path,), **options).read().rows)
        assert [each.id for each in found] == ["9", "7", "5", "3", "1"]
        assert np.array_equal(np.stack([each.x_ND for each in found]), features)


def test_pos_boxes_select_the_vectors_of_each_id(tmp_path):
    features = RANDOM.standard_normal((10, 8)).astype(np.float32)
    spans = np.array([[4, 10], [0, 3], [3, 4], [5, 5], [8, 11]])
    path = write_hdf5(tmp_path, image_features=features, pos_boxes=spans)
    (tmp_path / "ids.json").write_text('{"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 2, "h": "x"}')
    entries = list(Hdf5(file=(path,), ids=(tmp_path / "ids.json",)).read().rows)
    found = {one.id: one.x_ND for one in entries if isinstance(one, Features)}
    assert list(found) == ["b", "c", "a"]
    assert np.array_equal(found["a"], features[4:10])
    assert np.array_equal(found["b"], features[0:3])
    skipped = {one.where: one.why for one in entries if isinstance(one, Skipped)}
    beyond, torn = "an id whose row is not one of 0 to 4", "pos_boxes beyond the vectors, or empty"
    assert skipped == {
        **dict.fromkeys(("id f", "id h"), beyond),
        "id g": "an id whose row has another id already",
        **dict.fromkeys(("train.hdf5, row 3 (id d)", "train.hdf5, row 4 (id e)"), torn),
    }


@pytest.mark.parametrize("layout", ["the only ones", "named", "in a group", "a file of ids"])
def test_dataset_names_are_guessed_or_given(tmp_path, layout):
    features, ids = RANDOM.random((3, 2, 4), np.float32), np.array(["a/1", "a/2", "b/1"], "S")
    arrays = {"feats": features, "names": ids, "count": np.array(3)}
    if layout == "named":
        arrays |= {"words": ids[::-1], "other": features + 1}
    elif layout == "in a group":
        arrays = {"a/feats": features, "image_ids": ids}
    elif layout == "a file of ids":
        del arrays["names"]
        (tmp_path / "ids.json").write_text(json.dumps([id.decode() for id in ids]))
    path = write_hdf5(tmp_path, **arrays)
    words = ("hdf5", "--file", path, "--out", tmp_path / "out", "--dtype", "float32")
    if layout == "named":
        refused("--key names one of: count (), feats (3, 2, 4), names (3,)", *words, "--ids-key", "names")
        words += ("--key", "feats", "--ids-key", "names")
    elif layout == "in a group":
        words += ("--key", "a/feats")
    elif layout == "a file of ids":
        words += ("--ids", tmp_path / "ids.json")
    out = ingested(*words)
    assert ("guessed: ids: the data set 'names' (--ids-key says another)" in out) == (
        layout == "the only ones"
    )
    assert ("guessed: features: the data set 'feats'" in out) == (
        layout in ("the only ones", "a file of ids")
    )
    found = sets_of(tmp_path / "out")
    assert list(found) == ["a/1", "a/2", "b/1"]
    np.testing.assert_array_equal(np.stack(list(found.values())), features)


def test_one_dataset_per_id_is_read_from_groups(tmp_path):
    sets = {name: RANDOM.random((n + 1, 4), np.float32) for n, name in enumerate(["a/1", "a/2", "b/c/1"])}
    path = write_hdf5(
        tmp_path,
        **sets,
        **{"b/wide": np.ones((2, 5)), "b/text": np.array([b"no"]), "b/empty": np.ones((0, 4))},
    )
    with h5py.File(path, "a") as file:
        file["b/link"] = h5py.SoftLink("/a/1")
    words = ("hdf5", "--file", path, "--dtype", "float32", "--allow-skipped")
    assert "guessed: a data set for each id" in ingested(*words, "--out", tmp_path / "out")
    found = sets_of(tmp_path / "out")
    assert list(found) == list(sets)
    assert all(np.array_equal(found[name], x_ND) for name, x_ND in sets.items())
    assert dict(reasons(tmp_path / "out")) == {
        "b/text": "no data set of numbers",
        "train.hdf5, b/empty": "an empty set",
        "train.hdf5, b/wide, shape (2, 5)": "vectors of another width than 4, which most have",
    }
    ingested(*words, "--key", "a", "--out", tmp_path / "of-a-group")
    assert list(sets_of(tmp_path / "of-a-group")) == ["1", "2"]


def test_invalid_hdf5_input_is_refused(tmp_path):
    path = write_hdf5(tmp_path, features=np.ones((3, 2, 4)))
    (tmp_path / "ids.pkl").write_bytes(pickle.dumps({1: 0}))
    (tmp_path / "ids.json").write_text('"one"')
    np.save(tmp_path / "ids.npy", np.array([{}], dtype=object), allow_pickle=True)
    torn = tmp_path / "torn.hdf5"
    torn.write_bytes(path.read_bytes()[:-300])
    cases = {
        (path,): "no ids of the rows; give a file of ids with --ids",
        (
            path,
            "--key",
            "features",
        ): "name of a data set of ids with --ids-key; the file has: features (3, 2, 4)",
        (path, "--key", "other"): "has no 'other'; --key names one of: features (3, 2, 4)",
        (path, "--ids-key", "other"): "no ids of the rows",
        (path, "--ids-key", "other", "--ids", path): "give one",
        (path, "--key", "features", "--ids", tmp_path / "ids.pkl"): "pickles are not read",
        (path, "--key", "features", "--ids", tmp_path / "ids.json"): "expected a list of ids, or {id: row}",
        (path, "--key", "features", "--ids", tmp_path / "ids.npy"): "cannot be read as an array of ids",
        (torn, "--key", "features"): "cannot be read as HDF5, it may be cut short",
        (tmp_path / "none.hdf5",): "no such file",
    }
    for options, message in cases.items():
        refused(message, "hdf5", "--file", *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("adaptive", [False, True])
def test_boxes_are_stored_as_a_column(tmp_path, adaptive, monkeypatch):
    monkeypatch.setattr("polypool.tasks.datasets.readers.hdf5._BLOCK", 300)  # three rows at a time
    features = RANDOM.standard_normal((4, 3, 8)).astype(np.float32)
    spatial = RANDOM.random((4, 3, 6)).astype(np.float32)
    spatial[2, 1, 3] = np.nan
    spans = {"pos_boxes": np.array([[9, 12], [0, 3], [3, 6], [6, 9]])} if adaptive else {}
    of_row = [3, 0, 1, 2] if adaptive else [0, 1, 2, 3]  # index of the array for each row
    flat = (12, -1) if adaptive else (4, 3, -1)
    arrays = {"image_features": features.reshape(flat), "spatial_features": spatial.reshape(flat)}
    path = write_hdf5(tmp_path, **arrays, image_ids=np.arange(4), **spans)
    ingested("hdf5", "--file", path, "--out", tmp_path / "out", "--dtype", "float32")
    store = FeatureStore.open(tmp_path / "out")
    assert store.columns == {"boxes": 4}
    boxes = store.column("boxes")
    for row in range(4):
        at = of_row[row]
        (place,) = store.rows([str(row)])
        np.testing.assert_array_equal(store[place], features[at])
        expected = np.zeros((3, 4), np.float32) if at == 2 else spatial[at, :, :4]
        np.testing.assert_array_equal(boxes[place], expected)
    assert "boxes that cannot be read" in (tmp_path / "out" / "warnings.jsonl").read_text()


SECRET, SECRETS = 777.0, "secret.bin"


def elsewhere(folder: Path) -> None:
    """Write files outside the HDF5 file, whose numbers must not be read through it."""
    np.full(24, SECRET, np.float32).tofile(folder / SECRETS)
    with h5py.File(folder / "other.h5", "w") as file:
        file["image_features"] = np.full((3, 2, 4), SECRET, np.float32)


FULL, ONES = (3, 2, 4), np.ones((3, 2, 4), "f4")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3, 2, 4), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "image_features", (3, 2, 4))
    file.create_virtual_dataset("image_features", layout)


ELSEWHERE = "no links, and no data in other files"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda f: f.update(image_features=h5py.ExternalLink("other.h5", "image_features")), ELSEWHERE),
        (lambda f: f.create_dataset("image_features", FULL, "f4", external=[(SECRETS, 0, 96)]), ELSEWHERE),
        (virtual, ELSEWHERE),
        (
            lambda f: f.create_dataset("image_features", (2**40, 0), "f4", chunks=True),
            "is float32 of shape (1099511627776, 0), expected numbers",
        ),
        (lambda f: f.update(image_features=h5py.SoftLink("/image_features")), ELSEWHERE),
        (
            lambda f: f.update(image_features=np.full(FULL, b"a")),
            "is |S1 of shape (3, 2, 4), expected num",
        ),
        (
            lambda f: f.update(image_features=ONES, image_ids=np.array([1.5, np.nan, np.inf])),
            "'image_ids' holds float64, expected whole numbers or text; give --ids",
        ),
        (
            lambda f: f.update(image_features=np.ones((7, 4), "f4"), pos_boxes=np.ones((3, 2, 2), int)),
            "pos_boxes is int64 of shape (3, 2, 2), expected whole numbers of shape (n, 2)",
        ),
    ],
)
def test_external_or_malformed_hdf5_data_is_refused(tmp_path, monkeypatch, write, message):
    monkeypatch.chdir(tmp_path)  # names of other files are relative to it
    elsewhere(tmp_path)
    with h5py.File(tmp_path / "features.h5", "w") as file:
        write(file)
        if "image_ids" not in file:
            file["image_ids"] = np.array([7, 8, 9])
    refused(message, "hdf5", "--file", tmp_path / "features.h5", "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
