"""Sets of a store in the memory of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from polypool.infra.process.progress import Progress
from polypool.infra.ragged import ragged
from polypool.infra.store.feature_store import FeatureStore

_ROWS = 1024
"""Sets that are copied at once."""
_KEPT: dict[tuple[str, bytes, torch.device], ResidentSets] = {}
"""The copies of this process, by digest of the store, rows and device."""


class StoreRows:
    """Base class of inputs that read rows of a store, from its files or from copies in the memory of a device.

    Args:
        store: the features.
        rows: of the samples, in order, from `store.rows()`.
    """

    def __init__(self, store: FeatureStore, rows: np.ndarray) -> None:
        self.store, self.rows = store, rows
        self.sets: FeatureStore | ResidentSets = store

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors, each once."""
        vectors = int(self.store.sizes(np.unique(self.rows)).sum())
        return vectors * self.store.dim * np.dtype(self.store.dtype).itemsize


def keep_on(device: torch.device, inputs: Sequence[StoreRows], *, most: Callable[[], float]) -> None:
    """Copy the sets of inputs to a device, each if it takes at most `most()` bytes; the others stay in files.

    Copies remain for the next run of this process with the same features; others are freed first.
    """
    keys = [(each.store.digest, np.unique(each.rows).tobytes(), device) for each in inputs]
    for key in _KEPT.keys() - {*keys}:
        del _KEPT[key]
    for key, each in zip(keys, inputs, strict=True):
        if key not in _KEPT and each.nbytes <= most():
            _KEPT[key] = ResidentSets(each.store, each.rows, device)
        each.sets = _KEPT.get(key, each.store)


class ResidentSets:
    """The sets of some rows of a store in the memory of a device, with the interface of `FeatureStore.padded`.

    Args:
        store: the features.
        rows: from `store.rows()`; one that comes twice is copied once.
        device: whose memory holds the sets.
    """

    def __init__(self, store: FeatureStore, rows: np.ndarray, device: torch.device) -> None:
        self._rows = np.unique(rows)
        sizes = store.sizes(self._rows)
        self._ends = np.cumsum(sizes)
        self.device = device
        self._x_PD = torch.empty(
            int(sizes.sum()), store.dim, dtype=getattr(torch, store.dtype), device=device
        )
        parts = range(0, len(self._rows), _ROWS)
        for start in Progress(parts, desc=f"copying features to {device.type}", leave=False):
            x_BND, mask_BN = store.padded(self._rows[start : start + _ROWS])
            x_PD, end = x_BND[mask_BN], int(self._ends[min(start + _ROWS, len(self._rows)) - 1])
            self._x_PD[end - len(x_PD) : end] = x_PD.to(device)

    def padded(self, rows: np.ndarray, *, keep: Sequence[np.ndarray] | None = None) -> tuple[Tensor, Tensor]:
        """Return the sets in `rows`.

        Args:
            rows: B of the store's rows that were copied.
            keep: the elements to keep of each, a bool mask over the set.

        Returns:
            x_BND in the store's dtype, zeros in the padding, and mask_BN, True = real; both on the device.
        """
        at_B = np.searchsorted(self._rows, rows)
        end_B = self._ends[at_B]
        start_B = np.where(at_B > 0, self._ends[at_B - 1], 0)
        _, place_P = ragged(start_B, end_B - start_B)
        size_B = end_B - start_B
        if keep is not None:
            place_P = place_P[np.concatenate(keep)]
            size_B = np.array([stay.sum() for stay in keep])
        mask_BN = np.arange(size_B.max(initial=0)) < size_B[:, None]
        place_BN = np.zeros(mask_BN.shape, np.int64)
        place_BN[mask_BN] = place_P
        place, mask = (self._copied(torch.from_numpy(part)) for part in (place_BN, mask_BN))
        return self._x_PD[place].masked_fill_(~mask[..., None], 0.0), mask

    def _copied(self, x: Tensor) -> Tensor:
        return x.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else x
