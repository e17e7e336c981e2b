"""Boxes of regions as stores keep them: left, top, right and bottom as fractions of the picture's sides."""

from __future__ import annotations

import numpy as np

from tasks.datasets.features.to_store import Features

BOXES = "boxes"
"""The column of a store that says where in its picture each element is."""


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


def with_boxes(id: str, x_ND: np.ndarray, box_N4: np.ndarray | None, *, where: str) -> Features:
    """Return a set with its boxes as a column; where there are none, with zeros, which is said."""
    return Features(
        id=id,
        x_ND=x_ND,
        where=where,
        columns={BOXES: np.zeros((len(x_ND), 4), np.float32) if box_N4 is None else box_N4},
        odd="boxes that cannot be read; zeros are stored" if box_N4 is None else "",
    )
