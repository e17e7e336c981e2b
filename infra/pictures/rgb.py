"""One way from a picture of any mode to RGB of 8 bits."""

from __future__ import annotations

import numpy as np
from PIL import Image

from infra.errors import InputError

_STRIP = 1 << 20  # pixels that are laid on white at a time
_INTEGERS = {
    255: 0,
    65_535: 8,
    2**31 - 1: 23,
}  # the range that holds them all, and the bits that are too many
_FLOATS = (1.0, 255.0, 65_535.0)


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` in mode RGB: transparency on white, what has more than 8 bits scaled to them.

    16 bits lose the lower eight. Integers of 32 bits are taken to fill the least of 8, 16 and 31 bits that holds all
    of a picture's, and floats to run from 0 to the least of 1, 255 and 65,535.

    Raises:
        InputError: numbers below 0 or above these ranges, or none at all.
    """
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image) >> 8)
    if image.mode == "I":
        return _grey(_eight_bits(np.asarray(image)))
    if image.mode == "F":
        return _grey(_scaled(np.asarray(image)))
    return _on_white(image) if image.has_transparency_data else image.convert("RGB")


def _grey(x_HW: np.ndarray) -> Image.Image:
    return Image.fromarray(x_HW.astype(np.uint8)).convert("RGB")


def _eight_bits(x_HW: np.ndarray) -> np.ndarray:
    if x_HW.min() < 0:
        raise InputError("integers of 32 bits beyond 0 to 2,147,483,647, which have no shade of grey")
    highest = x_HW.max()
    return x_HW >> next(extra for top, extra in _INTEGERS.items() if highest <= top)


def _scaled(x_HW: np.ndarray) -> np.ndarray:
    if not (x_HW.min() >= 0 and x_HW.max() <= _FLOATS[-1]):  # NaN is neither
        raise InputError("floats beyond 0 to 1, 255 or 65,535, or not numbers, which have no shade of grey")
    highest = x_HW.max()
    return np.rint(x_HW * np.float32(255 / next(top for top in _FLOATS if highest <= top)))


def _on_white(image: Image.Image) -> Image.Image:
    """Return a picture on white, made in strips: whole, it would be in memory four times."""
    width, height = image.size
    whole = Image.new("RGB", image.size)
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        whole.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return whole
