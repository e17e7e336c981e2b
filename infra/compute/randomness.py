"""Counter-based random numbers, by SplitMix64 (Steele et al. 2014).

The number for word 3 of caption 17 in epoch 5 is the same for any batch, worker and number of workers, and after any
restart.
"""

from __future__ import annotations

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(*coordinates: np.ndarray | int) -> np.ndarray:
    """Return float64 numbers in [0, 1), one for each element of the broadcast integer coordinates."""
    state: np.ndarray = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for coordinate in coordinates:
            state = _mix((state ^ np.asarray(coordinate).astype(np.uint64)) + _STEP)
    return ((state >> np.uint64(11)) * 2.0**-53).reshape(np.broadcast_shapes(*map(np.shape, coordinates)))
