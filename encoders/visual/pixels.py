"""Image preprocessing of pixel encoders: resizing to squares, random crops and flips in training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from polypool.encoders.encoder import Encoder

IMAGENET: dict[str, Any] = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
"""Mean and standard deviation of red, green and blue, on a scale of 255."""


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """The preprocessing of VSE-infinity's grids (`image_caption.py`).

    The whole image, or a random crop in training, is resized to a square without keeping its aspect ratio.

    Attributes:
        size: side S of the square in pixels.
        cells: number N of elements of the network's output.
        mean: mean of the channels, on a scale of 255.
        std: standard deviation of the channels, on a scale of 255.
        bgr: order the channels blue, green, red, as in Caffe.
        antialias: smooth before downsampling; without it, each pixel interpolates the four nearest input pixels.
        crop: minimum ratio of the crop's sides to the image's; the ratio, one for both sides, is uniform in [crop, 1].
        flip: probability of a horizontal flip.
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
            u_4: uniform random numbers for the ratio of the crop, its left and upper edge, and the flip; None for the
                whole image.
        """
        x_SS3 = self.square(image, u_4)
        planes = [x_SS3[..., channel] for channel in ((2, 1, 0) if self.bgr else (0, 1, 2))]
        shifts, scales = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return np.stack([(x_SS - m) / s for x_SS, m, s in zip(planes, shifts, scales, strict=True)])

    def square(self, image: Image.Image, u_4: Sequence[float] | None = None) -> np.ndarray:
        """Return the image or a crop as `(S, S, 3)` values from 0 to 255."""
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
    """Resample an axis by linear interpolation between pixel centres."""
    at = (np.arange(size, dtype=np.float32) + 0.5) * (x.shape[axis] / size) - 0.5
    at = at.clip(0, x.shape[axis] - 1)
    lower = at.astype(np.int64)
    fraction = np.expand_dims(at - lower.astype(np.float32), tuple(range(1, x.ndim - axis)))
    low = x.take(lower, axis)
    high = x.take(np.minimum(lower + 1, x.shape[axis] - 1), axis)
    return low + (high.astype(np.float32) - low) * fraction


class PixelEncoder(Encoder):
    """An encoder of images `(B, 3, S, S)`, or of videos `(B, F, 3, S, S)`, frame by frame.

    The mask is over output cells: `(B, N)` for images, `(B, F * N)` for videos, grouped by frame.
    """

    reads = "pixels"

    def forward(self, pixels: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images or videos to sets of cells `(B, N, D)` or `(B, F * N, D)`."""
        x_IND = self.cells(pixels.flatten(0, -4))
        return x_IND.reshape(*mask_BN.shape, x_IND.shape[-1]), mask_BN

    @abstractmethod
    def cells(self, pixels_I3SS: Tensor) -> Tensor:
        """Encode images, or frames of several videos, to cells `(I, N, D)`."""

    @classmethod
    def prepare(cls, **params: Any) -> dict[str, Any]:
        """Compute the assets of a new encoder from the parameters of its spec."""
        return {}

    @classmethod
    @abstractmethod
    def transform(cls, assets: Mapping[str, Any], **params: Any) -> ImageTransform:
        """Return the preprocessing, from the assets and the parameters of the spec."""
