"""Coloured shapes of the demo's pictures and videos: their outlines, places and masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {
    "red": (206, 56, 52),
    "orange": (238, 138, 42),
    "yellow": (244, 208, 68),
    "green": (70, 150, 84),
    "blue": (58, 104, 190),
    "purple": (130, 78, 166),
    "pink": (240, 152, 182),
    "brown": (124, 82, 52),
    "black": (42, 42, 48),
    "white": (248, 248, 244),
}
BACKGROUNDS = {
    "grey": (158, 162, 168),
    "beige": (226, 211, 182),
    "light blue": (170, 204, 228),
    "pale green": (184, 214, 186),
    "dark": (62, 66, 84),
}
_SMOOTH = 3
PATTERNS = ("plain", "striped", "dotted", "checked")


def _around(radius: float, points: int, *, start: float = -90, x: float = 0, y: float = 0) -> np.ndarray:
    """Return corners on a circle, the first at the angle `start`, `(points, 2)`."""
    angle = np.radians(start + np.arange(points) * 360 / points)
    return np.stack([x + radius * np.cos(angle), y + radius * np.sin(angle)], axis=1)


def _star() -> np.ndarray:
    return np.stack([_around(1.1, 5), _around(0.48, 5, start=-54)], axis=1).reshape(-1, 2)


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 60)
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([16 * np.sin(t) ** 3, y], axis=1) / 16


def _cross() -> np.ndarray:
    a, b = 0.33, 1.0
    half = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a)]
    return np.array(half + [(-x, -y) for x, y in half])


FORMS: dict[str, tuple[np.ndarray, ...]] = {  # an outline, and where there is one a hole in it, of radius 1
    "circle": (_around(1, 60),),
    "square": (_around(1.2, 4, start=-45),),
    "triangle": (_around(1.2, 3, y=0.2),),
    "star": (_star(),),
    "heart": (_heart(),),
    "cross": (_cross(),),
    "ring": (_around(1, 60), _around(0.55, 60)),
    "moon": (_around(1, 60), _around(0.9, 60, x=0.5, y=-0.2)),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One object; its centre `x`, `y` and its `radius` are in pixels."""

    form: str
    colour: str
    size: str
    striped: bool
    x: float
    y: float
    radius: float


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Content of a picture."""

    background: str
    pattern: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class Mover:
    """One shape; its centre and its radius in each frame are in pixels. One that grows or shrinks has no `size`."""

    form: str
    colour: str
    size: str
    motion: str
    x_T: np.ndarray
    y_T: np.ndarray
    radius_T: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MovingScene:
    """Content of a video; movers that come later are in front."""

    background: str
    frames: int
    movers: tuple[Mover, ...]


def colours_on(background: str) -> list[str]:
    """Return the colours that stand out from a background."""
    ground = BACKGROUNDS[background]
    return [name for name, rgb in COLOURS.items() if np.abs(np.subtract(rgb, ground)).sum() > 110]


def mask(
    form: str, *, turn: float, radius: float, x: float, y: float, width: int, height: int
) -> Image.Image:
    """Return where a form is, turned by radians, in grey levels; drawn larger and shrunk, for smooth edges."""
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    mask = Image.new("L", (width * _SMOOTH, height * _SMOOTH))
    for outline, ink in zip(FORMS[form], (255, 0), strict=False):
        corners = (outline @ rotation * radius + (x, y)) * _SMOOTH
        ImageDraw.Draw(mask).polygon([tuple(corner) for corner in corners], fill=ink)
    return mask.reduce(_SMOOTH)
