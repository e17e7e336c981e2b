"""Labels beside the points that they name, where they cover neither points nor each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text

from pipelines.figures.style import INK, MUTED, wrapped

_NEAR = 3.0
"""Points (1/72 inch) between a marker and its label."""
_DISTANCES = (1.0, 2.5, 5.0, 9.0)
"""Multiples of that which are tried; a label farther than the first gets a line to its point."""
_ANGLES = np.arange(16) * (2 * math.pi / 16)
_ROUNDS = 4
_FAR, _CROSSED = 0.02, 0.006
"""What a step farther away, or an error bar under it, counts as, in shares of a label that another thing covers."""


def place(
    point_N2: np.ndarray,
    size_N2: np.ndarray,
    *,
    near: float,
    taken_M4: np.ndarray,
    crossed_L4: np.ndarray,
    room_4: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Find a place for the label of each point.

    Args:
        point_N2: the points.
        size_N2: width and height of their labels.
        near: the distance between a point and its label that is wanted.
        taken_M4: boxes (left, bottom, right, top) that are to stay free, such as markers.
        crossed_L4: boxes that labels may lie on where there is no better place, such as error bars.
        room_4: the box that labels are to stay in.

    Returns:
        Boxes of the labels `(N, 4)`, and what share of each lies on what is taken, on another, or outside.
    """
    boxes_NK4 = np.stack([_around(point, size, near) for point, size in zip(point_N2, size_N2, strict=True)])
    area_N = size_N2.prod(axis=1)
    far_K = np.repeat(np.arange(len(_DISTANCES)), len(_ANGLES)) * _FAR
    # right of its point is where a label is looked for, so that of equals the first angle wins
    far_K = far_K + np.tile(np.arange(len(_ANGLES)), len(_DISTANCES)) * 1e-4
    cost_NK = far_K + _CROSSED * (_overlap(boxes_NK4, crossed_L4) > 0).sum(axis=-1)
    fixed_NK = _overlap(boxes_NK4, taken_M4).sum(axis=-1)
    inside_NK = _overlap(boxes_NK4, room_4[None])[..., 0]
    bad_NK = (fixed_NK + area_N[:, None] - inside_NK) / area_N[:, None]
    chosen_N = np.argmin(bad_NK + cost_NK, axis=1)
    for _ in range(_ROUNDS):
        for n in range(len(point_N2)):
            others = np.delete(boxes_NK4[np.arange(len(point_N2)), chosen_N], n, axis=0)
            covered_K = _overlap(boxes_NK4[n], others).sum(axis=-1) / area_N[n]
            chosen_N[n] = np.argmin(bad_NK[n] + covered_K + cost_NK[n])
    box_N4 = boxes_NK4[np.arange(len(point_N2)), chosen_N]
    between_NN = _overlap(box_N4, box_N4)
    np.fill_diagonal(between_NN, 0)
    return box_N4, bad_NK[np.arange(len(point_N2)), chosen_N] + between_NN.sum(axis=1) / area_N


def _around(point: np.ndarray, size: np.ndarray, near: float) -> np.ndarray:
    """Return boxes around a point, nearest first: `(K, 4)`."""
    boxes = []
    for distance in _DISTANCES:
        for angle in _ANGLES:
            way = np.array([math.cos(angle), math.sin(angle)])
            # the box's side or corner that faces the point lies at the distance
            middle = point + way * near * distance + np.clip(way * 1.5, -1, 1) * size / 2
            boxes.append(np.concatenate([middle - size / 2, middle + size / 2]))
    return np.array(boxes)


def _overlap(boxes: np.ndarray, others_M4: np.ndarray) -> np.ndarray:
    """Return the area that boxes `(..., 4)` share with others: `(..., M)`."""
    low = np.maximum(boxes[..., None, :2], others_M4[:, :2])
    high = np.minimum(boxes[..., None, 2:], others_M4[:, 2:])
    return np.maximum(high - low, 0).prod(axis=-1)


def label(
    panel: Axes, x: np.ndarray, y: np.ndarray, names: Sequence[str], *, crossed: Sequence[tuple[float, ...]]
) -> float:
    """Write names beside points of a panel whose size is settled.

    Args:
        panel: where; its figure has been laid out.
        x, y: the points, in data.
        names: of each.
        crossed: boxes that labels rather keep off, in data: left, bottom, right, top.

    Returns:
        The largest share of a label that is covered or outside; 0 where all of them can be read.
    """
    figure = panel.figure
    renderer = figure.canvas.get_renderer()
    clear = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    style = {"fontsize": 8.5, "color": INK, "zorder": 6, "bbox": clear}
    texts: list[Text] = [panel.text(0, 0, wrapped(name), **style) for name in names]
    extents = [text.get_window_extent(renderer) for text in texts]
    size_N2 = np.array([[extent.width, extent.height] for extent in extents])
    point_N2 = panel.transData.transform(np.stack([x, y], axis=1))
    crossed_L4 = np.array([np.concatenate(panel.transData.transform([box[:2], box[2:]])) for box in crossed])
    crossed_L4 += np.array([-1, -1, 1, 1]) * figure.dpi / 72  # lines have a width
    marker = 4.5 * figure.dpi / 72
    near = _NEAR * figure.dpi / 72 + marker
    room = panel.get_window_extent(renderer)
    box_N4, covered_N = place(
        point_N2,
        size_N2,
        near=near,
        taken_M4=np.concatenate([point_N2 - marker, point_N2 + marker], axis=1),
        crossed_L4=crossed_L4,
        room_4=room.extents,
    )
    for text, box, point in zip(texts, box_N4, point_N2, strict=True):
        middle = (box[:2] + box[2:]) / 2
        text.set(position=panel.transData.inverted().transform(middle), ha="center", va="center")
        text.set_multialignment("left")
        nearest = np.clip(point, box[:2], box[2:])
        if np.hypot(*(nearest - point)) > 2 * near:
            ends = panel.transData.inverted().transform([point, nearest])
            panel.plot(*ends.T, color=MUTED, linewidth=0.6, zorder=3)
    return float(covered_N.max(initial=0.0))
