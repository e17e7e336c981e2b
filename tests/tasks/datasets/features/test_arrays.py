import os
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from verbs import ingested, reasons, refused, run, sets_of

from polypool.infra.store import FeatureStore
from polypool.tasks.datasets.features import Axes, Shape

RANDOM = np.random.default_rng(0)


def test_arrays_of_many_shapes_are_read_or_skipped(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    grid = RANDOM.standard_normal((7, 7, 8)).astype(np.float32)
    np.save(folder / "a.npy", grid[0])
    np.save(folder / "b.npy", grid[None, 0])
    np.save(folder / "c.npy", grid)
    np.savez(folder / "d.npz", features=grid[1], bbox=np.ones((7, 4)))
    np.savez_compressed(folder / "e.npz", x=grid[2], info=np.ones(1))
    np.savez(folder / "f.npz", anything=grid[3])
    np.save(folder / "g.npy", grid[0, 0])
    bad = {
        "k.npz": lambda path: np.savez(path, one=grid, two=grid),
        "l.npy": lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True),
        "m.npz": lambda path: np.savez(path, x=np.array([{}], dtype=object)),
        "n.npy": lambda path: path.write_bytes((folder / "a.npy").read_bytes()[:-9]),
        "o.npz": lambda path: path.write_bytes((folder / "d.npz").read_bytes()[:-99]),
        "p.npy": lambda path: path.touch(),
        "q.txt": lambda path: path.touch(),
        "r.npy": lambda path: np.save(path, np.float32(1)),
        "s.npy": lambda path: np.save(path, grid[..., :5]),
        "t.npy": lambda path: np.save(path, grid[:0]),
        "u.npy": lambda path: np.save(path, grid.astype("c8")),
        "v.npy": lambda path: np.save(path, np.zeros((5, 0))),
        "w.npy": os.mkfifo,
        "x.npz": lambda path: path.symlink_to(path),
        "a.npz": lambda path: np.savez(path, x=grid[5]),
    }
    for name, make in bad.items():
        make(folder / name)
    ingested("arrays", "--dir", folder, "--out", tmp_path / "out", "--dtype", "float32", "--allow-skipped")
    found = sets_of(tmp_path / "out")
    expected = dict(zip("abcdef", [grid[0], grid[0], grid.reshape(49, 8), *grid[1:4]], strict=True))
    assert list(found) == [*expected, "g"]
    for id, x_ND in expected.items():
        assert np.array_equal(found[id], x_ND)
    listed = dict(reasons(tmp_path / "out"))
    assert set(listed) == {*bad, "s.npy, shape (7, 7, 5)"} - {"s.npy"}
    assert "pickled" in listed["l.npy"]
    assert "pickled" in listed["m.npz"]
    assert {
        "k.npz": "2 arrays, none called features or x; --key names one, such as of one, two",
        **dict.fromkeys(("n.npy", "o.npz", "p.npy"), "damaged or cut short"),
        "q.txt": "not one of .npy, .npz or .pth files",
        "s.npy, shape (7, 7, 5)": "vectors of another width than 8, which most have",
        "v.npy": "vectors of width 0, expected 8",
        **dict.fromkeys(("w.npy", "x.npz"), "no file, but a folder, a pipe, or a link that leads nowhere"),
        "t.npy": "an empty set",
        "a.npz": "duplicate id",
    }.items() <= listed.items()


MAP = RANDOM.standard_normal((8, 2, 3))
PLANE = RANDOM.standard_normal((8, 5))


@pytest.mark.parametrize(
    ("x", "options", "count", "expected"),
    [
        (MAP, {}, None, MAP.reshape(16, 3)),
        (MAP, {"first": True}, None, MAP.reshape(8, 6).T),
        (MAP[None], {"first": True}, None, MAP.reshape(8, 6).T),
        (
            np.stack([MAP, -MAP]),
            {"first": True},
            None,
            np.concatenate([MAP.reshape(8, 6).T, -MAP.reshape(8, 6).T]),
        ),
        (PLANE, {}, None, PLANE),
        (PLANE[None], {}, None, PLANE),
        (PLANE, {"first": True}, None, PLANE.T),
        (PLANE, {}, 5, PLANE.T),
        (PLANE, {}, 8, PLANE),
        (PLANE, {"first": True}, 8, PLANE),
        (PLANE, {"last": True}, 5, PLANE),
        (PLANE, {}, 4, PLANE),
        (PLANE[:5], {}, 5, PLANE[:5]),
        (PLANE[0], {"first": True}, None, PLANE[:1]),
    ],
)
def test_axes_put_the_feature_width_last(x, options, count, expected):
    axes = Axes(**options)
    np.testing.assert_array_equal(axes.set(x, count), expected)
    assert axes.width(Shape(x.shape, count)) == expected.shape[1]


@pytest.mark.parametrize(
    ("shape", "count", "transposed"),
    [
        ((16, 7, 7), None, True),
        ((1, 2048, 7, 10), None, True),
        ((3, 7, 7), None, True),
        ((8, 512, 14, 14), None, True),
        ((7, 7, 2048), None, False),
        ((7, 7, 16), None, False),
        ((12, 7, 7, 64), None, False),
        ((300, 36, 256), None, False),
        ((2048, 36), None, True),
        ((2048, 36), 36, False),
        ((1, 2048, 100), None, True),
        ((36, 2048), None, False),
        ((2048, 1024), None, False),
        ((64, 5), None, False),
        ((2048,), None, False),
    ],
)
def test_transposed_shapes_are_detected(shape, count, transposed):
    assert Shape(shape, count).looks_transposed == transposed


REGIONS = np.ones((600, 36, 8), np.float32)


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({}, "--dir in", "no .npy, .npz or .pth files among its 0 files"),
        ({}, "--dir x", "x: no such folder"),
        ({}, "", "by --file FILE [FILE ...], or the folder of them by --dir DIR"),
        ({"a.npy": REGIONS}, "--dir in --file in/a.npy", "by --file FILE [FILE ...], or the folder"),
        ({"a.npy": REGIONS}, "--file in", "in: is a folder; name it by --dir"),
        ({"a.pkl": b""}, "--dir in", "`polypool ingest arrays --file in/a.pkl` may read that"),
        ({"a.h5": b""}, "--dir in", "`polypool ingest hdf5 --dir` reads its files"),
        (
            {"a.npy": REGIONS},
            "--dir in",
            "shape (600, 36, 8), without the ids of 600 images or videos. Name a .txt",
        ),
        ({"a.npy": REGIONS}, "--file in/a.npy", "by --ids, or call it a_ids.txt"),
        (
            {"train.npy": REGIONS, "test.npy": REGIONS},
            "--dir in",
            "test.npy: an array of shape (600, 36, 8), without",
        ),
        (
            {"a.npy": REGIONS, "a_ids.txt": b"1 2 3"},
            "--dir in",
            "a.npy: 600 rows, and 3 ids; name a file of as many",
        ),
        (
            {"a.npy": REGIONS, "b.npy": REGIONS, "ids.txt": b"1"},
            "--dir in --ids in/ids.txt",
            "one of 2 files",
        ),
        (
            {"t_ims.npy": REGIONS, "t_ids.txt": b"1", "v_ims.npy": REGIONS},
            "--dir in",
            "v_ims.npy: an array of",
        ),
        (dict.fromkeys(("a.npy", "b.npy"), np.ones((16, 7, 7))), "--dir in", "would become 112 vectors of 7"),
        (
            dict.fromkeys(("a.npy", "b.npy"), np.ones((16, 7, 7))),
            "--dir in",
            "--channels-first for 49 vectors of 16",
        ),
        (
            dict.fromkeys(("a.npy", "b.npy"), MAP),
            "--dir in --channels-first --channels-last",
            "--channels-first and --channels-last contradict each other",
        ),
        ({"a.pickle": pickle.dumps([1])}, "--file in/a.pickle", "pickles are not read, as they can run code"),
        (
            {"a.csv": b"name,path\n"},
            "--file in/a.csv",
            "expected the columns id, path, each once; it has name, path, and id not once",
        ),
    ],
)
def test_refusals_suggest_a_fix(tmp_path, monkeypatch, files, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        if isinstance(content, bytes):
            (tmp_path / "in" / name).write_bytes(content)
        else:
            np.save(tmp_path / "in" / name, content)
    refused(message, "arrays", *words.split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a 'file'.pkl", "a 'file'.npy"])
def test_suggested_pickle_conversion_works(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    held = {"v1": [np.ones((2, 4))], "v2": [np.zeros((3, 4))], 3: Fraction(1, 3)}  # lists of arrays
    if name.endswith(".npy"):
        np.save(tmp_path / name, held, allow_pickle=True)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(held))
    code, _, said = run("arrays", "--file", name, "--out", "out")
    assert (code, "If you trust it" in said) == (2, True)
    advice = said.partition("reads: python ")[2]
    subprocess.run(f"{sys.executable} {advice}", shell=True, check=True)
    ingested("arrays", "--file", "features.npz", "--out", "out", "--allow-skipped")
    assert {id: x_ND.shape for id, x_ND in sets_of(tmp_path / "out").items()} == {"v1": (2, 4), "v2": (3, 4)}
    assert dict(reasons(tmp_path / "out"))["features.npz, 3"].startswith("pickled objects")


def test_npz_boxes_are_stored_as_a_column(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    x_ND = RANDOM.standard_normal((5, 3, 8)).astype(np.float32)
    box_N4 = RANDOM.random((3, 4)).astype(np.float32) * 100
    np.savez(folder / "a.npz", x=x_ND[0])  # the first file has no boxes
    np.savez(folder / "b.npz", x=x_ND[1], bbox=box_N4, image_w=200, image_h=400, num_bbox=3)
    np.savez(folder / "c.npz", features=x_ND[2], boxes=box_N4[:2], image_width=[200], image_height=[400])
    np.savez(folder / "d.npz", x=x_ND[3], bbox=np.array([{}], object), image_w=200, image_h=400)
    np.savez(folder / "e.npz", x=x_ND[4], bbox=box_N4, image_w=[200, 1], image_h=400)
    ingested("arrays", "--dir", folder, "--out", tmp_path / "out", "--dtype", "float32")
    store = FeatureStore.open(tmp_path / "out")
    assert store.columns == {"boxes": 4}
    for row, id in enumerate("abcde"):
        np.testing.assert_array_equal(store[store.rows([id])[0]], x_ND[row])
        expected = box_N4 / [200, 400, 200, 400] if id == "b" else np.zeros((3, 4))
        np.testing.assert_allclose(store.column("boxes")[store.rows([id])[0]], expected, rtol=1e-6)
    listed = (tmp_path / "out" / "warnings.jsonl").read_text()
    assert [f"{id}.npz" in listed for id in "abcde"] == [True, False, True, True, True]


def test_extend_adds_the_arrays_of_another_folder(tmp_path):
    for folder, names in (("one", "ab"), ("two", "bc")):
        (tmp_path / folder).mkdir()
        for name in names:
            np.save(tmp_path / folder / f"{name}.npy", np.ones((2, 4), np.float32))
    words = ("--out", tmp_path / "out")
    ingested("arrays", "--dir", tmp_path / "one", *words)
    refused("adds to it with --extend", "arrays", "--dir", tmp_path / "two", *words)
    for _ in range(2):
        ingested("arrays", "--dir", tmp_path / "two", *words, "--extend")
    assert list(sets_of(tmp_path / "out")) == ["a", "b", "c"]
    files = FeatureStore.open(tmp_path / "out").manifest.source["files"]
    assert [(each["count"], each["first"]) for each in files] == [(2, "a.npy"), (2, "b.npy")]
    refused("made with another key", "arrays", "--dir", tmp_path / "two", "--key", "x", *words, "--extend")


def test_ids_include_folders_but_not_hidden_ones(tmp_path):
    for name in ("a/1", "a/b/1", "1", ".hidden/2"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "in" / f"{name}.npy", np.ones((2, 4), np.float32))
    ingested("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert list(sets_of(tmp_path / "out")) == ["1", "a/1", "a/b/1"]
