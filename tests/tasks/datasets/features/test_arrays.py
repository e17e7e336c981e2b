import os
import struct

import numpy as np
import pytest
from verbs import ingested, reasons, refused, sets_of

from polypool.infra.limits import UNPACKS_TOO_FAR
from polypool.infra.store import FeatureStore
from polypool.tasks.datasets.features import as_set

RANDOM = np.random.default_rng(0)


def test_arrays_of_many_shapes(tmp_path):
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
        "k.npz": "2 arrays, none called features or x",
        **dict.fromkeys(("n.npy", "o.npz", "p.npy"), "damaged or cut short"),
        "q.txt": "not a .npy or .npz file",
        "s.npy, shape (7, 7, 5)": "vectors of another width than 8, which most have",
        "v.npy": "vectors of width 0, expected 8",
        **dict.fromkeys(("w.npy", "x.npz"), "a folder, a pipe, or a link that leads nowhere"),
        "t.npy": "an empty set",
        "a.npz": "duplicate id",
    }.items() <= listed.items()


@pytest.mark.parametrize("first", [True, False])
def test_the_width_is_that_of_most_files_and_the_others_are_listed(tmp_path, first):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "0.npy", np.ones((9, 2, 3)))  # the first to be read
    np.savez(tmp_path / "in" / "1.npz", x=np.ones((4, 5)))
    np.savez_compressed(tmp_path / "in" / "2.npz", other=np.ones(1), features=np.ones((8, 2, 3)))
    for number in range(3, 6):
        np.save(tmp_path / "in" / f"{number}.npy", np.full((8, 2, 3), number))
    for name, shape, version in (("6.npy", (8, 1, 3), (2, 0)), ("7.npy", (6, 7), (3, 0))):
        with (tmp_path / "in" / name).open("wb") as file:
            np.lib.format.write_array(file, np.ones(shape), version=version)
    options = ["--channels-first"] if first else []
    out = ingested("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out", "--allow-skipped", *options)
    found, width = sets_of(tmp_path / "out"), 8 if first else 3
    assert list(found) == [*("23456" if first else "023456")]
    assert {x_ND.shape[1] for x_ND in found.values()} == {width}
    odd = {"1.npz, shape (4, 5)", "7.npy, shape (6, 7)", *(["0.npy, shape (9, 2, 3)"] if first else [])}
    assert set(dict(reasons(tmp_path / "out"))) == odd
    assert f"{len(odd)} x vectors of another width than {width}, which most have: " in out
    strict = ("--dir", tmp_path / "in", "--out", tmp_path / "strict", *options)
    refused("were left out", "arrays", *strict, code=1)


def test_channels_first():
    map_DHW = RANDOM.standard_normal((8, 2, 3))
    expected = map_DHW.reshape(8, 6).T
    assert np.array_equal(as_set(map_DHW, channels_first=True), expected)
    assert np.array_equal(as_set(map_DHW[None], channels_first=True), expected)
    assert as_set(map_DHW).shape == (16, 3)


def test_arrays_of_an_empty_or_missing_folder_exit_with_2(tmp_path):
    (tmp_path / "in").mkdir()
    for folder, message in (("in", "nothing usable was found; nothing skipped"), ("x", "x: no such folder")):
        refused(message, "arrays", "--dir", tmp_path / folder, "--out", tmp_path / "out")


def test_empty_arrays_have_no_say_in_the_width(tmp_path):
    (tmp_path / "in").mkdir()
    for name, shape in {"a": (0, 7), "b": (0, 7), "c": (2, 3)}.items():
        np.save(tmp_path / "in" / f"{name}.npy", np.ones(shape))
    ingested("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out", "--allow-skipped")
    assert list(sets_of(tmp_path / "out")) == ["c"]
    assert set(dict(reasons(tmp_path / "out")).values()) == {"an empty set"}


def patched(data: bytes, *, flag: int = 0, method: int = 0) -> bytes:
    """Set the flags and the method of all entries of a zip."""
    changed = bytearray(data)
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(sign)
        while at >= 0:
            struct.pack_into("<HH", changed, at + place, flag, method)
            at = changed.find(sign, at + 4)
    return bytes(changed)


def test_archives_that_are_encrypted_strange_or_endless_are_listed(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for name in "ab":
        np.save(tmp_path / "in" / f"{name}.npy", np.ones((2, 4), np.float32))
    np.savez(tmp_path / "good.npz", x=np.ones((2, 4), np.float32))
    good = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "in" / "c.npz").write_bytes(patched(good, flag=1))
    (tmp_path / "in" / "d.npz").write_bytes(patched(good, method=97))
    monkeypatch.setattr("polypool.tasks.datasets.features.arrays.LARGEST_SET", 1000)
    np.savez_compressed(tmp_path / "in" / "e.npz", x=np.ones((100, 4), np.float32))
    monkeypatch.setattr("polypool.infra.limits._SMALL", 500)
    np.savez_compressed(tmp_path / "in" / "f.npz", x=np.zeros((50, 4), np.float32))
    monkeypatch.setattr("polypool.infra.limits._MOST_UNPACKED", 5)
    ingested("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out", "--allow-skipped")
    assert list(sets_of(tmp_path / "out")) == ["a", "b"]
    assert dict(reasons(tmp_path / "out")) == {
        "c.npz": "damaged or cut short",
        "d.npz": "damaged or cut short",
        "e.npz": "an array of over 1,000 bytes, too large for one image or video",
        "f.npz": f"an array that {UNPACKS_TOO_FAR}",
    }


def test_boxes_of_archives_become_a_column(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    x_ND = RANDOM.standard_normal((5, 3, 8)).astype(np.float32)
    box_N4 = RANDOM.random((3, 4)).astype(np.float32) * 100
    np.savez(folder / "a.npz", x=x_ND[0])  # without boxes, and the first
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


def test_ids_may_have_folders_and_hidden_ones_are_not_entered(tmp_path):
    for name in ("a/1", "a/b/1", "1", ".hidden/2"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "in" / f"{name}.npy", np.ones((2, 4), np.float32))
    ingested("arrays", "--dir", tmp_path / "in", "--out", tmp_path / "out")
    assert list(sets_of(tmp_path / "out")) == ["1", "a/1", "a/b/1"]
