"""A folder of `.npy` or `.npz` files, one an image or video, named by its id; `a/b.npy` in a sub-folder is of `a/b`.

How an array becomes a set is in `polypool.tasks.datasets.features.as_set`: the last axis is D, all others are
elements. In an `.npz` the array is called `features` or `x`, or is the only one. D is what most files have.

An `.npz` of regions has boxes in pixels, `bbox` or `boxes` `(N, 4)`, and the picture's size, `image_w` or `image_width`
and `image_h` or `image_height`: where any file has, boxes are kept as a column, with zeros where one has none or odd
ones, which are listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing_folder
from polypool.infra.limits import LARGEST_SET, UNPACKS_TOO_FAR, unpacks_too_far
from polypool.infra.pictures.boxes import fractions
from polypool.infra.process.progress import Progress
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.infra.untrusted_arrays import reason
from polypool.tasks.datasets import FeatureReader, Features, Reading
from polypool.tasks.datasets.features import OTHER_WIDTH, as_set, usual_width, width_of
from polypool.tasks.datasets.readers.folders import files_below

_NAMES = ("features", "x")
_BOXES = (("bbox", "boxes"), ("image_w", "image_width"), ("image_h", "image_height"))


@READERS.register("arrays")
@dataclass(frozen=True, kw_only=True)
class Arrays(FeatureReader):
    """Read a folder of .npy or .npz files named by id, into a store; an id may have sub-folders."""

    dir: Path
    """Folder of the files; the last axis of each is the width, all others are elements of the set."""
    channels_first: bool = False
    """Files are (D, H, W), as convolutions give them."""

    def read(self) -> Reading:
        """Return the sets of the folder, by file name, and of those in it; the id of `a/b.npy` is `a/b`.

        Skipped are files that cannot be read, that are no arrays, or whose vectors have another width than most.
        """
        source = {"folder": self.dir.name, "channels_first": self.channels_first}
        return Reading(rows=self._sets(), source=source)

    def _sets(self) -> Iterator[Features | Skipped]:
        folder = existing_folder(self.dir, what="a folder of .npy or .npz files")
        names = sorted(name for name in files_below(folder) if not f"/{name}".count("/."))
        looked = [
            _look(folder / name, channels_first=self.channels_first)
            for name in Progress(names, desc="widths", unit="file", leave=False)
        ]
        width, boxed = usual_width(width for width, _ in looked), any(has for _, has in looked)
        for where in Progress(names, desc="files", unit="file"):
            path = folder / where
            id, ending = os.path.splitext(where)
            if ending not in (".npy", ".npz"):
                yield Skipped(where=where, why="not a .npy or .npz file", wanted=False)
                continue
            try:
                x, beside = _load(path)
            except InputError as error:
                yield Skipped(where=where, why=str(error))
                continue
            x_ND = as_set(x, channels_first=self.channels_first)
            if x_ND.size and x_ND.shape[1] != width:
                yield Skipped(where=f"{where}, shape {x.shape}", why=OTHER_WIDTH.format(width))
            elif boxed:
                yield Features.with_boxes(id, x_ND, _boxes(beside, len(x_ND)), where=where)
            else:
                yield Features(id=id, x_ND=x_ND, where=where)


def _look(path: Path, *, channels_first: bool) -> tuple[int | None, bool]:
    """Return the width that a file's header says, and whether the file has boxes and its picture's size.

    The width of an empty array is None, and of a damaged file, of which `_load` says what is wrong.
    """
    shape, boxed = (), False
    with suppress(Exception):  # damage raises what zip, its methods, or numpy's parser of literals raise
        if path.suffix == ".npy" and path.is_file():
            with path.open("rb") as file:
                shape = _shape(file)
        elif path.suffix == ".npz" and path.is_file():
            with np.load(path, allow_pickle=False) as arrays:
                boxed = all(any(name in arrays.files for name in names) for names in _BOXES)
                with arrays.zip.open(f"{_name(arrays)}.npy") as file:
                    shape = _shape(file)
    return width_of(shape, channels_first=channels_first) if shape else None, boxed


def _shape(file: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)[0]


def _name(arrays: np.lib.npyio.NpzFile) -> str | None:
    """Return which array of several is meant; None where none is."""
    names = [name for name in _NAMES if name in arrays.files] or arrays.files
    return names[0] if len(names) == 1 or set(names) & set(_NAMES) else None


def _load(path: Path) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Return what a file holds: the array, and boxes, width and height of the picture as they were found.

    Raises:
        InputError: it cannot be used; the message is the reason alone.
    """
    if not path.is_file():  # opening a pipe would wait for a writer
        raise InputError("a folder, a pipe, or a link that leads nowhere")
    try:
        x, beside = np.load(path, allow_pickle=False), [None] * len(_BOXES)
        if isinstance(x, np.lib.npyio.NpzFile):
            with x as arrays:
                if (name := _name(arrays)) is None:
                    raise InputError(f"{len(arrays.files)} arrays, none called {' or '.join(_NAMES)}")
                for member in arrays.zip.infolist():
                    if member.file_size > LARGEST_SET:
                        raise InputError(
                            f"an array of over {LARGEST_SET:,} bytes, too large for one image or video"
                        )
                    if unpacks_too_far(member.file_size, packed=member.compress_size):
                        raise InputError(f"an array that {UNPACKS_TOO_FAR}")
                x, beside = arrays[name], [_beside(arrays, names) for names in _BOXES]
    except InputError:
        raise
    except Exception as error:  # as in `_look`
        raise InputError(reason(path, error)) from error
    if not x.ndim:
        raise InputError("a single number, expected an array")
    return x, beside


def _beside(arrays: np.lib.npyio.NpzFile, names: Sequence[str]) -> np.ndarray | None:
    """Return the first array of some names; None where there is none that can be read, for the features still can."""
    with suppress(Exception):
        return next((arrays[name] for name in names if name in arrays.files), None)
    return None


def _boxes(beside: Sequence[np.ndarray | None], count: int) -> np.ndarray | None:
    """Return the boxes of `count` elements as fractions `(count, 4)`; None where they are missing or odd."""
    found = [x for x in beside if x is not None and x.dtype.kind in "fiu"]
    if len(found) < len(_BOXES) or not found[1].size == found[2].size == 1:
        return None
    return fractions(found[0], count, width=float(found[1].item()), height=float(found[2].item()))
