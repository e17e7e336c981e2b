"""A folder of `.npy` or `.npz` files, one an image or video, named by its id.

How an array becomes a set is in `tasks.datasets.features.to_store.as_set`: the last axis is D, all others are
elements. In an `.npz` the array is called `features` or `x`, or is the only one.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from infra.files import existing_folder
from infra.store.findings import Skipped
from tasks.datasets.features.to_store import Features, as_set

_NAMES = ("features", "x")


def read_arrays(folder: str | Path, *, channels_first: bool = False) -> Iterator[Features | Skipped]:
    """Yield the sets of a folder, by file name; files that cannot be read, or are no arrays, are skipped.

    Args:
        folder: holds the files; folders in it are not entered.
        channels_first: arrays are `(D, H, W)`, as convolutions give them.

    Raises:
        InputError: there is no such folder.
    """
    folder = existing_folder(folder, what="a folder of .npy or .npz files")
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in tqdm(paths, desc="files", unit="file"):
        if path.suffix not in (".npy", ".npz"):
            yield Skipped(where=path.name, why="not a .npy or .npz file", wanted=False)
            continue
        x = _load(path)
        if isinstance(x, str):
            yield Skipped(where=path.name, why=x)
        else:
            yield Features(id=path.stem, x_ND=as_set(x, channels_first=channels_first), where=path.name)


def _load(path: Path) -> np.ndarray | str:
    """Return the array of a file, or why there is none."""
    try:
        x = np.load(path, allow_pickle=False)
        if isinstance(x, np.lib.npyio.NpzFile):
            with x as arrays:
                known = [name for name in _NAMES if name in arrays.files]
                names = known or arrays.files
                if not known and len(names) != 1:
                    return f"{len(names)} arrays, none called {' or '.join(_NAMES)}"
                x = arrays[names[0]]
        return x if x.ndim else "a single number, expected an array"
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        pickled = "allow_pickle" in str(error)
        return (
            "pickled objects; these are not read, as they can run code" if pickled else "damaged or cut short"
        )
