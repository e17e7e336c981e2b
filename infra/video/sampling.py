"""Which frames of a clip stand for it, where there are more than wanted."""

from __future__ import annotations

import numpy as np


def choose_frames(count: int, at_most: int) -> np.ndarray:
    """Return the numbers of up to `at_most` of `count` frames: all, or as many evenly spaced ones.

    The first and the last are among them, and places between two frames are rounded half to even, as in HGR's code.
    """
    if count <= at_most:
        return np.arange(count)
    return np.round(np.linspace(0, count - 1, at_most)).astype(np.int64)
