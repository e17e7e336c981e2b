from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from verbs import ingested, refused, sets_of

SECRET = 777.0


def elsewhere(folder: Path) -> None:
    """Write the numbers that no damaged file may show."""
    np.full(24, SECRET, np.float32).tofile(folder / "secret.bin")
    with h5py.File(folder / "other.h5", "w") as file:
        file["image_features"] = np.full((3, 2, 4), SECRET, np.float32)


def external_link(file: h5py.File) -> None:
    file["image_features"] = h5py.ExternalLink("other.h5", "image_features")


def external_storage(file: h5py.File) -> None:
    path = str(Path(file.filename).with_name("secret.bin"))
    file.create_dataset("image_features", (3, 2, 4), "f4", external=[(path, 0, 96)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3, 2, 4), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "image_features", (3, 2, 4))
    file.create_virtual_dataset("image_features", layout)


def endless(file: h5py.File) -> None:
    file.create_dataset("image_features", (10**9, 36, 2048), "f4", chunks=(1, 36, 2048))


def wide(file: h5py.File) -> None:
    file.create_dataset("image_features", (1, 10**9, 4), "f4", chunks=(1, 100, 4))


def endless_of_nothing(file: h5py.File) -> None:
    file.create_dataset("image_features", (2**40, 0), "f4", chunks=True)


def loop(file: h5py.File) -> None:
    file["image_features"] = h5py.SoftLink("/image_features")


def text(file: h5py.File) -> None:
    file["image_features"] = np.full((3, 2, 4), b"a")


def odd_ids(file: h5py.File) -> None:
    file["image_features"] = np.ones((3, 2, 4), "f4")
    del file["image_ids"]
    file["image_ids"] = np.array([1.5, np.nan, np.inf])


def ids_never_written(file: h5py.File) -> None:
    file["image_features"] = np.ones((3, 2, 4), "f4")
    del file["image_ids"]
    file.create_dataset("image_ids", (10**6,), "i1", chunks=True)


def short_chunk(file: h5py.File) -> None:
    data = file.create_dataset("image_features", (3, 2, 4), "f4", chunks=(1, 2, 4), fletcher32=True)
    data.id.write_direct_chunk((0, 0, 0), b"a")


def odd_positions(file: h5py.File) -> None:
    file["image_features"] = np.ones((7, 4), "f4")
    file["pos_boxes"] = np.ones((3, 2, 2), int)


def no_positions(file: h5py.File) -> None:
    file["image_features"] = np.ones((7, 4), "f4")
    file["pos_boxes"] = h5py.Empty("i8")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (external_link, "image_features is a link to data elsewhere; it is not followed"),
        (external_storage, "the data of image_features lie in other files; these are not read"),
        (virtual, "the data of image_features lie in other files; these are not read"),
        (endless, "claims 294,912,000,000,000 bytes, and the file holds 0 of it"),
        (wide, "claims 16,000,000,000 bytes, and the file holds 0 of it"),
        (endless_of_nothing, "holds float32 of shape (1099511627776, 0), expected numbers"),
        (loop, "image_features is a link to data elsewhere"),
        (text, "'image_features' holds |S1 of shape (3, 2, 4), expected numbers"),
        (odd_ids, "'image_ids' holds float64, expected whole numbers or text; give --ids"),
        (ids_never_written, "image_ids (1000000,) claims 1,000,000 bytes, and the file holds 0 of it"),
        (short_chunk, "image_features has chunks too short for their checksum"),
        (odd_positions, "pos_boxes is int64 of shape (3, 2, 2), expected whole numbers of shape (n, 2)"),
        (no_positions, "pos_boxes is something else, expected whole numbers of shape (n, 2)"),
    ],
)
def test_hdf5_of_others_is_read_for_what_lies_in_it(
    tmp_path: Path, write: Callable[[h5py.File], None], message: str
) -> None:
    elsewhere(tmp_path)
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file["image_ids"] = np.array([7, 8, 9])
        write(file)
    refused(message, "hdf5", "--file", tmp_path / "features.h5", "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_link_in_a_group_is_not_followed_and_a_group_is(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file["image_ids"] = np.array([7, 8, 9])
        file["here/features"] = np.ones((3, 2, 4), "f4")
        file["there"] = h5py.ExternalLink("other.h5", "/")
    options = ("hdf5", "--file", tmp_path / "features.h5", "--out", tmp_path / "out", "--key")
    refused("is a link to data elsewhere", *options, "there/image_features")
    ingested(*options, "here/features")
    assert list(sets_of(tmp_path / "out")) == ["7", "8", "9"]


def test_features_packed_well_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file["image_ids"] = np.array([7, 8, 9])
        file.create_dataset(
            "image_features", data=np.ones((3, 4000, 64), "f4"), chunks=(1, 4000, 64), compression="gzip"
        )
    ingested("hdf5", "--file", tmp_path / "features.h5", "--out", tmp_path / "out")
