"""Boxes of regions in stores: left, top, right and bottom as fractions of the picture's sides."""

from __future__ import annotations

import numpy as np

BOXES = "boxes"
"""The column of a store with the box of each element in its picture."""
SCORES = "scores"
"""The column with a detector's score of each."""


def fractions(box_N4: np.ndarray | None, count: int, *, width: float, height: float) -> np.ndarray | None:
    """Return boxes in pixels as fractions `(count, 4)`, float32; None where there are none, or invalid ones.

    Args:
        box_N4: left, top, right and bottom in pixels, or None.
        count: expected number.
        width, height: of the picture, in pixels.
    """
    if box_N4 is None or box_N4.shape != (count, 4) or not (width > 0 and height > 0):
        return None
    fraction_N4 = box_N4 / np.array([width, height, width, height], np.float32)
    return fraction_N4.astype(np.float32) if np.isfinite(fraction_N4).all() else None


def corners(centre_N4: np.ndarray) -> np.ndarray:
    """Convert boxes from centre, width and height to left, top, right and bottom, clipped to the picture.

    Args:
        centre_N4: as fractions of the picture's sides.
    """
    middle_N2, half_N2 = centre_N4[:, :2], centre_N4[:, 2:] / 2
    return np.concatenate([middle_N2 - half_N2, middle_N2 + half_N2], axis=1).clip(0, 1)


def best_regions(
    box_N4: np.ndarray, score_N: np.ndarray, *, most: int, least: int, threshold: float, overlap: float
) -> np.ndarray:
    """Return the numbers of the regions to keep, by falling score.

    Greedy non-maximum suppression, over all classes: a region is dropped where its intersection over union with a kept
    one is above `overlap`. Boxes without an area, such as those beyond the picture's border, come last.

    Args:
        box_N4: left, top, right and bottom.
        score_N: of the detector.
        most, least: how many regions, where there are so many.
        threshold: the score that regions beyond the `least` need.
        overlap: 1 keeps all.
    """
    area_N = (box_N4[:, 2:] > box_N4[:, :2]).all(axis=1)
    wanted_N = area_N & (score_N >= threshold)
    kept: list[int] = []
    for number in np.lexsort((-score_N, ~area_N)).tolist():
        if len(kept) == most or (len(kept) >= least and not wanted_N[number]):
            break
        if overlap >= 1 or not kept or shared(box_N4[number], box_N4[kept]).max() <= overlap:
            kept.append(number)
    return np.array(kept, np.int64)


def shared(box_4: np.ndarray, box_N4: np.ndarray) -> np.ndarray:
    """Return the intersection over union of a box with each of others, `(N,)`; 0 where neither has an area."""
    corner_N2 = np.maximum(box_4[:2], box_N4[:, :2])
    side_N2 = (np.minimum(box_4[2:], box_N4[:, 2:]) - corner_N2).clip(min=0)
    both_N = side_N2.prod(axis=1)
    either_N = (box_4[2:] - box_4[:2]).prod() + (box_N4[:, 2:] - box_N4[:, :2]).prod(axis=1) - both_N
    return np.divide(both_N, either_N, out=np.zeros_like(both_N), where=either_N > 0)
