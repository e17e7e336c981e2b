"""Sets of features on a disk: in the store, and in an HDF5 file, read through h5py and by bare system calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from benchmarks.random_data import feature_sets, feature_store
from polypool.infra.errors import InputError
from polypool.infra.store import FeatureStore

Padded = Callable[[np.ndarray], tuple[Tensor, Tensor]]
Batches = Iterator[tuple[Tensor, Tensor]]
_HDF5 = "sets.hdf5"


@dataclass(frozen=True, kw_only=True)
class Format:
    """A way to keep sets.

    Args:
        name: of it.
        how: how it is read, for the table's note.
        write: `(folder, size_S, dim)`: writes the sets of `feature_sets`.
        batches: `(folder, size_S, dim, row_KB)`: opens the folder and yields the batches of these rows, padded, as
            `FeatureStore.padded` does.
        package: what must be installed for it.
    """

    name: str
    how: str
    write: Callable[[Path, np.ndarray, int], object]
    batches: Callable[[Path, np.ndarray, int, Sequence[np.ndarray]], Batches]
    package: str = ""

    def require(self) -> None:
        """Refuse a format whose package is not installed."""
        if self.package and find_spec(self.package) is None:
            raise InputError(f"{self.name} is not installed (no package {self.package})")


def _write_store(folder: Path, size_S: np.ndarray, dim: int) -> None:
    feature_store(folder, size_S, dim=dim)


def _store(folder: Path, size_S: np.ndarray, dim: int, row_KB: Sequence[np.ndarray]) -> Batches:
    yield from map(FeatureStore.open(folder).padded, row_KB)


STORE = Format(name="store", how="", write=_write_store, batches=_store)


def write_hdf5(folder: Path, size_S: np.ndarray, dim: int) -> None:
    """Write the sets one after another to one contiguous dataset, `features`."""
    start = 0
    with h5py.File(folder / _HDF5, "w") as file:
        features = file.create_dataset("features", (int(size_S.sum()), dim), np.float16)
        for x_ND in feature_sets(size_S, dim=dim):
            features[start : start + len(x_ND)] = x_ND
            start += len(x_ND)


def hdf5_bytes(folder: Path) -> tuple[Path, int]:
    """Return the file that `write_hdf5` wrote, and the byte at which its vectors begin."""
    with h5py.File(folder / _HDF5, "r") as file:
        return folder / _HDF5, file["features"].id.get_offset()


def ends(size_S: np.ndarray) -> np.ndarray:
    """Return the vector at which each set begins, and after them the number of all; `(S + 1,)`."""
    return np.concatenate([[0], size_S.cumsum()])


def loop(vectors_VD: np.ndarray | h5py.Dataset, end_S1: np.ndarray) -> Padded:
    """Return what anyone would write: a zeroed tensor, and one slice for each set."""

    def padded(row_B: np.ndarray) -> tuple[Tensor, Tensor]:
        first_B, last_B = end_S1[row_B], end_S1[row_B + 1]
        size_B = last_B - first_B
        width = int(size_B.max())
        x_BND = np.zeros((len(row_B), width, vectors_VD.shape[1]), vectors_VD.dtype)
        for x_ND, first, last in zip(x_BND, first_B.tolist(), last_B.tolist(), strict=True):
            x_ND[: last - first] = vectors_VD[first:last]
        return torch.from_numpy(x_BND), torch.from_numpy(np.arange(width) < size_B[:, None])

    return padded


def padding(fill: Callable[[np.ndarray, int], None], size_S: np.ndarray, dim: int) -> Padded:
    """Return what makes batches, set by set, of a function that fills the place of one."""

    def padded(row_B: np.ndarray) -> tuple[Tensor, Tensor]:
        size_B = size_S[row_B]
        x_BND = np.zeros((len(row_B), int(size_B.max()), dim), np.float16)
        for x_ND, size, row in zip(x_BND, size_B.tolist(), row_B.tolist(), strict=True):
            fill(x_ND[:size], row)
        return torch.from_numpy(x_BND), torch.from_numpy(np.arange(x_BND.shape[1]) < size_B[:, None])

    return padded


def _hdf5(folder: Path, size_S: np.ndarray, dim: int, row_KB: Sequence[np.ndarray]) -> Batches:
    with h5py.File(folder / _HDF5, "r") as file:
        yield from map(loop(file["features"], ends(size_S)), row_KB)


HDF5 = Format(name="h5py", how="one slice a set of one contiguous dataset", write=write_hdf5, batches=_hdf5)


def _preadv(folder: Path, size_S: np.ndarray, dim: int, row_KB: Sequence[np.ndarray]) -> Batches:
    (path, start), end_S1 = hdf5_bytes(folder), ends(size_S)

    with path.open("rb", buffering=0) as file:

        def fill(x_ND: np.ndarray, row: int) -> None:
            if os.preadv(file.fileno(), [x_ND], start + int(end_S1[row]) * 2 * dim) != x_ND.nbytes:
                raise OSError(f"{path} is cut short")

        yield from map(padding(fill, size_S, dim), row_KB)


PREADV = Format(
    name="preadv", how="one system call a set on the bytes of an HDF5 file", write=write_hdf5, batches=_preadv
)
