"""A folder of `.npy` or `.npz` files, one an image or video, named by its id.

How an array becomes a set is in `polypool.tasks.datasets.features.as_set`: the last axis is D, all others are
elements. In an `.npz` the array is called `features` or `x`, or is the only one. D is what most files have.

An `.npz` of regions has boxes in pixels, `bbox` or `boxes` `(N, 4)`, and the picture's size, `image_w` or `image_width`
and `image_h` or `image_height`: where any file has, boxes are kept as a column, with zeros where one has none or odd
ones, which are listed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from tqdm import tqdm

from polypool.infra.files import existing_folder
from polypool.infra.npy import reason
from polypool.infra.pictures.boxes import fractions
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets.features import FeatureReader, Features, FeatureSets, as_set

_NAMES = ("features", "x")
_BOXES, _WIDTH, _HEIGHT = ("bbox", "boxes"), ("image_w", "image_width"), ("image_h", "image_height")
_NUMBER = "a single number, expected an array"
_LARGEST = 1 << 30  # bytes, unpacked; a small archive can hold any number of zeros


@dataclass(frozen=True, kw_only=True)
class Arrays(FeatureReader):
    """Read a folder of .npy or .npz files named by id, into a store."""

    dir: Path
    """Folder of the files; the last axis of each is the width, all others are elements of the set."""
    channels_first: bool = False
    """Files are (D, H, W), as convolutions give them."""

    def read(self) -> FeatureSets:
        """Return the sets of the folder, by file name; folders in it are not entered.

        Skipped are files that cannot be read, that are no arrays, or whose vectors have another width than most.
        """
        source = {"folder": self.dir.name, "channels_first": self.channels_first}
        return FeatureSets(sets=self._sets(), source=source)

    def _sets(self) -> Iterator[Features | Skipped]:
        folder = existing_folder(self.dir, what="a folder of .npy or .npz files")
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        width, boxed = _usual_width(paths, channels_first=self.channels_first), any(map(_has_boxes, paths))
        for path in tqdm(paths, desc="files", unit="file"):
            if path.suffix not in (".npy", ".npz"):
                yield Skipped(where=path.name, why="not a .npy or .npz file", wanted=False)
                continue
            loaded = _load(path)
            if isinstance(loaded, str):
                yield Skipped(where=path.name, why=loaded)
                continue
            x_ND = as_set(loaded.x, channels_first=self.channels_first)
            if x_ND.size and x_ND.shape[1] != width:
                where = f"{path.name}, shape {loaded.x.shape}"
                yield Skipped(
                    where=where, why=f"vectors of another width than {width}, which most files have"
                )
            elif boxed:
                yield Features.with_boxes(path.stem, x_ND, loaded.boxes(len(x_ND)), where=path.name)
            else:
                yield Features(id=path.stem, x_ND=x_ND, where=path.name)


def _usual_width(paths: Sequence[Path], *, channels_first: bool) -> int | None:
    """Return the width that most files say they have, of those with equally many the first file's."""
    widths: Counter[int] = Counter()
    for path in tqdm(paths, desc="widths", unit="file", leave=False):
        shape = _shape(path)
        if shape and math.prod(shape):
            widths[shape[-3] if channels_first and len(shape) >= 3 else shape[-1]] += 1
    return widths.most_common(1)[0][0] if widths else None


def _shape(path: Path) -> tuple[int, ...] | None:
    """Return the shape that a file's header says; None where there is none, and `_load` says why."""
    if not path.is_file():
        return None
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return _header(file)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays, arrays.zip.open(f"{_name(arrays)}.npy") as file:
                return _header(file)
    except Exception:  # damage raises what zip, its methods, or numpy's parser of literals raise
        pass
    return None


def _header(file: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)[0]


def _name(arrays: np.lib.npyio.NpzFile) -> str | None:
    """Return which array of several is meant; None where none is."""
    names = [name for name in _NAMES if name in arrays.files] or arrays.files
    return names[0] if len(names) == 1 or set(names) & set(_NAMES) else None


def _has_boxes(path: Path) -> bool:
    """Whether a file has boxes and its picture's size; a damaged one has not, and `_load` says what is wrong."""
    if path.suffix != ".npz" or not path.is_file():
        return False
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return all(any(name in arrays.files for name in names) for names in (_BOXES, _WIDTH, _HEIGHT))
    except Exception:  # damage raises what zip or its methods raise
        return False


@dataclass(frozen=True)
class _Loaded:
    """What a file holds: the array, and boxes in pixels with the picture's width and height, as they were found."""

    x: np.ndarray
    box: np.ndarray | None = None
    width: np.ndarray | None = None
    height: np.ndarray | None = None

    def boxes(self, count: int) -> np.ndarray | None:
        """Return the boxes of `count` elements as fractions `(count, 4)`; None where they are missing or odd."""
        box, width, height = self.box, self.width, self.height
        if box is None or width is None or height is None:
            return None
        if any(x.dtype.kind not in "fiu" for x in (box, width, height)) or not width.size == height.size == 1:
            return None
        return fractions(box, count, width=float(width.item()), height=float(height.item()))


def _load(path: Path) -> _Loaded | str:
    """Return what a file holds, or why it cannot be used."""
    if not path.is_file():  # opening a pipe would wait for a writer
        return "a folder, a pipe, or a link that leads nowhere"
    try:
        x = np.load(path, allow_pickle=False)
        if not isinstance(x, np.lib.npyio.NpzFile):
            return _Loaded(x) if x.ndim else _NUMBER
        with x as arrays:
            name = _name(arrays)
            if name is None:
                return f"{len(arrays.files)} arrays, none called {' or '.join(_NAMES)}"
            if any(member.file_size > _LARGEST for member in arrays.zip.infolist()):
                return f"an array of over {_LARGEST:,} bytes, too large for one image or video"
            beside = (_beside(arrays, names) for names in (_BOXES, _WIDTH, _HEIGHT))
            return _Loaded(x, *beside) if (x := arrays[name]).ndim else _NUMBER
    except Exception as error:  # damage raises what zip, its methods, or numpy's parser of literals raise
        return reason(path, error)


def _beside(arrays: np.lib.npyio.NpzFile, names: Sequence[str]) -> np.ndarray | None:
    """Return the first array of some names; None where there is none that can be read, for the features still can."""
    try:
        return next((arrays[name] for name in names if name in arrays.files), None)
    except Exception:
        return None
