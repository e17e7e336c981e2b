"""Weights of an image's cells as colours over it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import numpy as np
from PIL import Image

_COLOURS = np.array([[20, 24, 82], [120, 28, 109], [220, 60, 60], [252, 150, 30], [255, 235, 90]], float)
_LEAST, _MOST = 0.45, 0.6
"""How much of the picture the colours cover where weights are small, and where they are large."""
_WARPED = 384  # pixels from which ConvNeXt's preprocessing squeezes images instead of cropping them


def cells(elements: int) -> tuple[int, int] | None:
    """Return the side of a square grid of cells and how many elements come before it, or None if there is none.

    One does where a vision transformer keeps its class token.
    """
    for before in (0, 1):
        side = isqrt(max(elements - before, 0))
        if side > 1 and side * side + before == elements:
            return side, before
    return None


def overlay(image: Image.Image, weight_RC: np.ndarray) -> Image.Image:
    """Return an image under the weights of its cells, from blue (the smallest) to yellow (the largest).

    Colours between the centres of cells are interpolated linearly. They are the paler, the less the weights differ:
    full where the smallest is at most half the largest.

    Args:
        image: in mode RGB.
        weight_RC: of rows and columns; where all are alike, the image is returned as it is.
    """
    least, most = float(weight_RC.min()), float(weight_RC.max())
    if most <= least:
        return image
    heat = Image.fromarray(((weight_RC - least) / (most - least)).astype(np.float32))
    heat_HW = np.asarray(heat.resize(image.size, Image.Resampling.BILINEAR)).clip(0, 1)
    steps = np.linspace(0, 1, len(_COLOURS))
    colour_HW3 = np.stack([np.interp(heat_HW, steps, column) for column in _COLOURS.T], axis=-1)
    strength = min(1.0, 2 * (most - least) / max(abs(least), abs(most)))
    cover_HW1 = strength * (_LEAST + (_MOST - _LEAST) * heat_HW)[..., None]
    mixed_HW3 = np.asarray(image) * (1 - cover_HW1) + colour_HW3 * cover_HW1
    return Image.fromarray(mixed_HW3.round().astype(np.uint8))


def part_seen(image: Image.Image, extractor: Mapping[str, Any]) -> Image.Image:
    """Return the part of an image that a backbone saw: its middle, where the preprocessing cuts the border off.

    Args:
        image: the whole.
        extractor: what the feature store says of it; nothing for backbones that see all.
    """
    settings = {} if extractor.get("size") else extractor.get("preprocessing") or {}
    size = settings.get("size") or {}
    short = size.get("shortest_edge")
    crop = (settings.get("crop_size") or {}) if settings.get("do_center_crop") else {}
    height, width = crop.get("height"), crop.get("width")
    if settings.get("crop_pct") and short and short < _WARPED:
        height, width, short = short, short, int(short / settings["crop_pct"])
    if not height or not width:
        return image
    scale = short / min(image.size) if short else 0.0
    whole = (image.width * scale, image.height * scale) if short else (size.get("width"), size.get("height"))
    if not all(whole):
        return image
    kept = [
        side * min(1.0, cut / large)
        for side, cut, large in zip(image.size, (width, height), whole, strict=True)
    ]
    left, top = ((side - part) / 2 for side, part in zip(image.size, kept, strict=True))
    return image.crop((round(left), round(top), round(left + kept[0]), round(top + kept[1])))
