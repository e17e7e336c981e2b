"""Sampling of the frames of a clip, or the elements of a set."""

from __future__ import annotations

import numpy as np


def choose_frames(count: int, at_most: int) -> np.ndarray:
    """Return the numbers of up to `at_most` of `count` frames: all, or as many evenly spaced ones.

    They include the first and the last; positions between two frames are rounded half to even, as in HGR's code.
    """
    if count <= at_most:
        return np.arange(count)
    return np.round(np.linspace(0, count - 1, at_most)).astype(np.int64)


def sample_frames(count: int, *, every: int = 1, at_most: int | None = None) -> np.ndarray:
    """Return the numbers of the frames 0, `every`, 2 `every`, ... of `count`, and of these at most `at_most`.

    The features that HGR released for MSR-VTT have every 16th frame: 19 of a video of 300.
    """
    frame_N = np.arange(0, count, every)
    return frame_N if at_most is None else frame_N[choose_frames(len(frame_N), at_most)]
