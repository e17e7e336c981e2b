"""Boxes of regions as stores keep them: left, top, right and bottom as fractions of the picture's sides."""

from __future__ import annotations

import numpy as np

BOXES = "boxes"
"""The column of a store that says where in its picture each element is."""
SCORES = "scores"
"""The column that says how sure a detector was of each."""


def fractions(box_N4: np.ndarray | None, count: int, *, width: float, height: float) -> np.ndarray | None:
    """Return boxes in pixels as fractions `(count, 4)`, float32; None where they cannot be.

    Args:
        box_N4: left, top, right and bottom in pixels; None where there are none.
        count: how many there have to be.
        width, height: of the picture, in pixels.
    """
    if box_N4 is None or box_N4.shape != (count, 4) or not (width > 0 and height > 0):
        return None
    fraction_N4 = box_N4 / np.array([width, height, width, height], np.float32)
    return fraction_N4.astype(np.float32) if np.isfinite(fraction_N4).all() else None


def corners(centre_N4: np.ndarray) -> np.ndarray:
    """Return boxes given as centre, width and height by their left, top, right and bottom, within the picture.

    Args:
        centre_N4: as fractions of the picture's sides.
    """
    middle_N2, half_N2 = centre_N4[:, :2], centre_N4[:, 2:] / 2
    return np.concatenate([middle_N2 - half_N2, middle_N2 + half_N2], axis=1).clip(0, 1)


def best_regions(
    box_N4: np.ndarray, score_N: np.ndarray, *, most: int, least: int, threshold: float, overlap: float
) -> np.ndarray:
    """Return the numbers of the regions to keep, the surest first.

    Of regions that lie on each other only the surest is kept: a region goes where the area that it shares with a kept
    one is more than `overlap` of what the two cover (greedy non-maximum suppression, whatever the classes). Boxes
    without an area, such as those beyond the picture's border, come last.

    Args:
        box_N4: left, top, right and bottom.
        score_N: how sure the detector is of each.
        most, least: how many regions, where there are so many.
        threshold: of those beyond the `least`, the score that a region needs.
        overlap: 1 keeps all.
    """
    seen_N = (box_N4[:, 2:] > box_N4[:, :2]).all(axis=1)
    kept: list[int] = []
    for number in np.lexsort((-score_N, ~seen_N)).tolist():
        wanted = seen_N[number] and score_N[number] >= threshold
        if len(kept) == most or (len(kept) >= least and not wanted):
            break
        if overlap >= 1 or not kept or shared(box_N4[number], box_N4[kept]).max() <= overlap:
            kept.append(number)
    return np.array(kept, np.int64)


def shared(box_4: np.ndarray, box_N4: np.ndarray) -> np.ndarray:
    """Return of a box with each of others the intersection over union `(N,)`; 0 where neither has an area."""
    corner_N2 = np.maximum(box_4[:2], box_N4[:, :2])
    side_N2 = (np.minimum(box_4[2:], box_N4[:, 2:]) - corner_N2).clip(min=0)
    both_N = side_N2.prod(axis=1)
    either_N = (box_4[2:] - box_4[:2]).prod() + (box_N4[:, 2:] - box_N4[:, :2]).prod(axis=1) - both_N
    return np.divide(both_N, either_N, out=np.zeros_like(both_N), where=either_N > 0)
