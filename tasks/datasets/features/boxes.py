"""Published features with the boxes that came with them."""

from __future__ import annotations

import numpy as np

from infra.pictures.boxes import BOXES
from tasks.datasets.features.to_store import Features


def with_boxes(id: str, x_ND: np.ndarray, box_N4: np.ndarray | None, *, where: str) -> Features:
    """Return a set with its boxes as a column; where there are none, with zeros, which is said."""
    return Features(
        id=id,
        x_ND=x_ND,
        where=where,
        columns={BOXES: np.zeros((len(x_ND), 4), np.float32) if box_N4 is None else box_N4},
        odd="boxes that cannot be read; zeros are stored" if box_N4 is None else "",
    )
