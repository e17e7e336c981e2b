"""One way from any picture, or file of one, to RGB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` in mode RGB: transparency on white, 16 bits scaled to 8."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def load(path: str | Path, *, side: int = 0) -> Image.Image | str:
    """Return an image file as RGB, upright, or why that cannot be done.

    Args:
        path: the file.
        side: where it is to be made small, what its sides must still measure: a JPEG decodes at a fraction of its size,
            in a fraction of the time. 0: its own size.
    """
    try:
        with Image.open(path) as image:
            if side:
                image.draft("RGB", (side, side))
            return rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        return "no such file"
    except Exception as error:  # Pillow raises anything from OSError to struct.error on a broken file
        return f"does not decode as an image ({type(error).__name__})"
