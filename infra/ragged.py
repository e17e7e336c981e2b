"""Lists of different lengths, one after another in one flat array."""

from __future__ import annotations

import numpy as np


def ragged(start_B: np.ndarray | int, size_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each element of B lists the row of its list and its place in the flat array, `(P,)` int64 each.

    Args:
        start_B: where each list begins; 0 for the places within each list.
        size_B: how long it is.
    """
    row_P = np.repeat(np.arange(len(size_B)), size_B)
    return row_P, np.arange(len(row_P)) + (start_B - (np.cumsum(size_B) - size_B))[row_P]
