from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polypool.infra.errors import InputError
from polypool.infra.files import existing, existing_folder, make_folder, read_json, walk
from polypool.infra.untrusted_arrays import map_array


@pytest.mark.parametrize("path", ["x" * 5_000, "a\x00b", "a/" * 3_000])
def test_a_path_that_no_system_takes_is_no_file(path: str) -> None:
    for look in (existing, existing_folder):
        with pytest.raises(InputError, match="no such"):
            look(path, what="something")
    if path != "a/" * 3_000:
        with pytest.raises(InputError, match="cannot make this folder"):
            make_folder(path)


def test_a_file_that_gives_no_bytes_is_told() -> None:
    with pytest.raises(InputError, match="cannot be read: Input/output error; expected something"):
        read_json("/proc/self/mem", what="something")


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.jpg").touch()
    (tmp_path / "elsewhere" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere" / "b" / "two.jpg").touch()
    for name in ("loop", "again"):
        (tmp_path / "a" / name).symlink_to(tmp_path / "a")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "elsewhere")
    found = {below: names for below, names in walk(tmp_path / "a") if names}
    assert found == {".": ["one.jpg"], "linked/b": ["two.jpg"]}


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }"


@pytest.mark.parametrize(
    "header",
    [
        HEADER[:-3],
        HEADER.replace("2, 4", "99999999999999999999, 4"),
        HEADER.replace("<f4", "<U1000000000"),
        "(" * 5_000,
        HEADER.replace("<f4", "|O"),
        HEADER.replace("2, 4", "10**9, 4"),
        "1" * 5_000,
        "{}",
    ],
)
def test_a_damaged_header_of_an_array_ends_in_one_message(tmp_path: Path, header: str) -> None:
    path = tmp_path / "x.npy"
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(32))
    with pytest.raises(
        InputError, match=r"cannot be read as features: (damaged or cut short|pickled objects)"
    ):
        map_array(path, what="features")


def test_text_beyond_unicode_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(["abc", "é"]))
    assert map_array(tmp_path / "x.npy", what="ids").tolist() == ["abc", "é"]
    data = bytearray((tmp_path / "x.npy").read_bytes())
    data[-24:-20] = b"\xff\xff\xff\xff"
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(InputError, match="no Unicode"):
        map_array(tmp_path / "x.npy", what="ids")


@pytest.mark.parametrize("kind", ["[]", "'|S0'", "'<U0'", "'|V4'"])
def test_an_array_of_elements_without_bytes_or_meaning_is_refused(tmp_path: Path, kind: str) -> None:
    shape = "1" if kind == "'|V4'" else "4611686018427387904, 4"
    text = HEADER.replace("'<f4'", kind).replace("2, 4", f"{shape},").encode() + b"\n"
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(32))
    with pytest.raises(InputError, match=r"cannot be read as ids: (an array of|damaged)"):
        map_array(path, what="ids")
