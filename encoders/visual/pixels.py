"""From an image file to what a network reads: a square of numbers, cropped and mirrored at random in training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from encoders.base import Encoder

IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
"""Mean and deviation of red, green and blue, in steps of 8-bit images."""


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """How images become the input of a network: VSE-infinity's way for grids, whose code is `image_caption.py`.

    The whole image, or in training a random part of it, is squashed to a square whatever its proportions.

    Attributes:
        size: side S of the square in pixels.
        cells: elements N that the network makes of it.
        mean: subtracted from the channels, in steps of 8-bit images.
        std: they are divided by.
        bgr: channels go blue, green, red, as networks trained in Caffe want them.
        antialias: smooth before making smaller; without it, each new pixel mixes the four nearest old ones.
        crop: smallest side of the random part; its ratio to the image's is uniform in [crop, 1], one for both sides.
        flip: probability that the part is mirrored.
    """

    size: int
    cells: int
    mean: Sequence[float]
    std: Sequence[float]
    bgr: bool = False
    antialias: bool = False
    crop: float = 0.6
    flip: float = 0.5

    def __call__(self, image: Image.Image, u_4: Sequence[float] | None = None) -> np.ndarray:
        """Return the network's input `(3, S, S)`, float32.

        Args:
            image: in mode RGB.
            u_4: uniform numbers that decide the ratio of the part, its left and upper edge, and its mirroring; None
                takes the whole image.
        """
        x_SS3 = self.square(image, u_4)
        planes = [x_SS3[..., channel] for channel in ((2, 1, 0) if self.bgr else (0, 1, 2))]
        shifts, scales = np.float32(self.mean), np.float32(self.std)
        return np.stack([(x_SS - m) / s for x_SS, m, s in zip(planes, shifts, scales, strict=True)])

    def square(self, image: Image.Image, u_4: Sequence[float] | None = None) -> np.ndarray:
        """Return the image, or a part of it, as `(S, S, 3)` values from 0 to 255."""
        if u_4 is not None:
            image = self._part(image, *u_4[:3])
        if self.antialias:
            x_SS3 = np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR))
        else:
            x_SS3 = _stretch(_stretch(np.asarray(image), self.size, axis=0), self.size, axis=1)
        return x_SS3[:, ::-1] if u_4 is not None and u_4[3] < self.flip else x_SS3

    def _part(self, image: Image.Image, ratio: float, left: float, top: float) -> Image.Image:
        ratio = self.crop + (1 - self.crop) * ratio
        width, height = (max(1, int(side * ratio)) for side in image.size)
        left = int(left * (image.width - width + 1))
        top = int(top * (image.height - height + 1))
        return image.crop((left, top, left + width, top + height))


def _stretch(x: np.ndarray, size: int, *, axis: int) -> np.ndarray:
    """Resample an axis to `size` by linear interpolation between the centres of pixels."""
    at = (np.arange(size, dtype=np.float32) + 0.5) * (x.shape[axis] / size) - 0.5
    at = at.clip(0, x.shape[axis] - 1)
    lower = at.astype(np.int64)
    fraction = np.expand_dims(at - lower.astype(np.float32), tuple(range(1, x.ndim - axis)))
    low = x.take(lower, axis)
    high = x.take(np.minimum(lower + 1, x.shape[axis] - 1), axis)
    return low + (high.astype(np.float32) - low) * fraction


class PixelEncoder(Encoder):
    """An encoder of images `(B, 3, S, S)`; its mask `(B, N)` says which of the cells it makes are in the set."""

    reads = "pixels"

    @classmethod
    def prepare(cls, **params: Any) -> dict[str, Any]:
        """Make the assets of a new encoder from the parameters of its spec."""
        return {}

    @classmethod
    @abstractmethod
    def transform(cls, assets: Mapping[str, Any], **params: Any) -> ImageTransform:
        """Return what makes this encoder's input of an image, from its assets and the parameters of its spec."""
