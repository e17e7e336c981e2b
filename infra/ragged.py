"""Ragged lists in one flat array."""

from __future__ import annotations

import numpy as np


def ragged(start_B: np.ndarray | int, size_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each element of B lists, the row of its list and its index in the flat array, `(P,)` int64 each.

    Args:
        start_B: offset of each list; 0 for indices within each list.
        size_B: length of each list.
    """
    row_P = np.repeat(np.arange(len(size_B)), size_B)
    return row_P, np.arange(len(row_P)) + (start_B - (np.cumsum(size_B) - size_B))[row_P]
