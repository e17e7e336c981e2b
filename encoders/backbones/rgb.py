"""One way from any picture to RGB."""

from __future__ import annotations

import numpy as np
from PIL import Image


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` in mode RGB: transparency on white, 16 bits scaled to 8."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
