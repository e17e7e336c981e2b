"""Arrays of `.npz` files: what numpy writes comes back, and what is damaged is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from query_results import retrieval

from infra.errors import InputError
from pipelines.comparison.runs.stored_arrays import StoredArrays


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    arrays = retrieval()[0].arrays
    np.savez_compressed(tmp_path / "whole.npz", **arrays)
    stored = StoredArrays(tmp_path / "whole.npz")
    assert stored.keys() == arrays.keys()
    assert all(np.array_equal(stored[name], arrays[name]) for name in arrays)
    assert "i2t_R5" in stored
    assert "i2t_R7" not in stored
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    (tmp_path / "objects.npz").write_bytes(b"")
    np.savez(tmp_path / "objects.npz", accuracy=np.array([{}], dtype=object))
    for name in ("cut.npz", "objects.npz"):
        with pytest.raises(InputError, match=rf"{name} cannot be read"):
            dict(StoredArrays(tmp_path / name))


def test_arrays_come_back_in_every_form_that_numpy_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "columns": np.asfortranarray(rng.random((3, 4))),
        "rows": rng.random((3, 4)).astype(">f4"),
        "none": np.empty(0),
        "one": np.array(7, np.int16),
        "named": np.array(["a", "é"]),
        "fields": np.array([(1, 2.5)], dtype=[("n" * 70_000, int), ("x", float)]),  # version 2
        "umlaut": np.array([(1,)], dtype=[("ü", int)]),  # version 3
    }
    with pytest.warns(UserWarning, match="format"):
        np.savez(tmp_path / "all.npz", **arrays)
    stored = StoredArrays(tmp_path / "all.npz")
    assert list(stored) == list(arrays)
    for name in arrays.keys() - {"fields"}:
        assert stored[name].dtype == arrays[name].dtype
        assert stored[name].shape == arrays[name].shape
        assert np.array_equal(stored[name], arrays[name])
    with pytest.raises(InputError, match=r"(?s)all.npz cannot be read.*header"):
        stored["fields"]  # longer than numpy reads of what it does not know


def test_arrays_that_are_alike_are_unpacked_once_and_others_are_not_taken_for_them(tmp_path: Path) -> None:
    ids, scores = np.array(["a", "b", "c"]), np.arange(3.0)
    for n in range(3):
        np.savez_compressed(tmp_path / f"{n}.npz", ids=ids, scores=scores + n)
    read = [StoredArrays(tmp_path / f"{n}.npz") for n in range(3)]
    assert all(of["ids"] is read[0]["ids"] for of in read)
    assert [of["scores"].tolist() for of in read] == [[n, n + 1, n + 2] for n in range(3)]
    for of in read:
        with pytest.raises(ValueError, match="read-only"):
            of["ids"][0] = "x"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_byte_that_changed_is_seen_wherever_it_is(tmp_path: Path, save) -> None:
    arrays = {"ids": np.array(["a", "b"]), "scores": np.arange(2.0)}
    save(tmp_path / "whole.npz", **arrays)
    whole, path = (tmp_path / "whole.npz").read_bytes(), tmp_path / "changed.npz"
    seen = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            found = dict(StoredArrays(path))
        except InputError:
            seen += 1
            continue
        same = {name: x for name, x in found.items() if name in arrays}  # a name may have changed
        assert all(np.array_equal(x, arrays[name]) for name, x in same.items())
    assert seen > len(whole) / 3


def test_what_numpy_does_not_write_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", x=np.zeros(9))
    with zipfile.ZipFile(tmp_path / "whole.npz") as file:
        data = file.read("x.npy")
    with zipfile.ZipFile(tmp_path / "other.npz", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("x.npy", data)
    with pytest.raises(InputError, match="packed by the method 14"):
        StoredArrays(tmp_path / "other.npz")["x"]
