"""Pictures that are made up."""

from __future__ import annotations

import numpy as np
from PIL import Image

MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"]


def noise(height: int = 60, width: int = 80, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))
