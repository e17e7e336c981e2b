"""Colour, edge and texture features of the cells of a regular grid, which need no weights.

Colours are in CIE Lab, which is perceptually uniform. Edges are histograms of oriented gradients (Dalal and Triggs,
"Histograms of oriented gradients for human detection", CVPR 2005), here with soft bins and square roots, so that
Euclidean distances are Hellinger distances of histograms. Texture is uniform local binary patterns (Ojala, Pietikäinen
and Mäenpää, "Multiresolution gray-scale and rotation invariant texture classification with local binary patterns", PAMI
2002).

Coarse histograms scored higher: with a thousand training images, finer ones overfitted.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from skimage.color import rgb2lab
from skimage.feature import local_binary_pattern

from polypool.encoders.backbones import Backbone
from polypool.infra.pictures import rgb
from polypool.infra.registry import BACKBONES

ORIENTATIONS = 8
PATTERNS = 10  # uniform patterns of 8 neighbours: 0 to 8 brighter ones, and one bin for all others


@BACKBONES.register("cells")
class Cells(Backbone):
    """Features of each cell of a `grid` x `grid` partition, in row-major order.

    An image is first resized to a square of `grid * pixels`, so that every cell has the same number of pixels. A cell's
    features are the mean, standard deviation and covariance of L, a and b (3 each), edges (8) and texture (10), the
    differences of mean, deviation and edges from the surrounding cells (14), and its row and column from -1 to 1 (2),
    because pooling discards positions.

    Args:
        grid: cells per side.
        pixels: side of a cell in pixels.
    """

    dim = 3 + 3 + 3 + ORIENTATIONS + PATTERNS + (3 + 3 + ORIENTATIONS) + 2

    def __init__(self, *, grid: int = 7, pixels: int = 24) -> None:
        if grid < 1 or pixels < 2:
            raise ValueError(
                f"expected a grid of at least 1 and cells of at least 2 pixels, got {grid} and {pixels}"
            )
        self.grid, self.pixels = grid, pixels
        self.side = grid * pixels
        index = np.arange(self.side) // pixels
        self._index_P = (index[:, None] * grid + index).ravel()
        place = np.linspace(-1, 1, grid) if grid > 1 else np.zeros(1)
        self._place_N2 = np.stack(np.meshgrid(place, place, indexing="ij"), axis=-1).reshape(-1, 2)

    def describe(self) -> dict[str, object]:
        """Return all settings that determine the features."""
        return {"backbone": "cells", "grid": self.grid, "pixels": self.pixels, "version": 1}

    def __call__(self, images: list[Image.Image]) -> list[np.ndarray]:
        """Return the features of each image, `(grid * grid, dim)` float32; images may have any mode and size."""
        return [self._features(image) for image in images]

    def _features(self, image: Image.Image) -> np.ndarray:
        square = rgb(image).resize((self.side, self.side), Image.Resampling.BILINEAR)
        lab_HWC = rgb2lab(np.asarray(square))
        mean, deviation, covariance = self._colour(lab_HWC)
        edges, texture = self._edges(lab_HWC[..., 0]), self._texture(lab_HWC[..., 0])
        local = np.concatenate([mean, deviation, edges], axis=1)
        parts = [local, covariance, texture, local - self._around(local), self._place_N2]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def _colour(self, lab_HWC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, standard deviation and covariance (La, Lb, ab; in units of 10), each `(N, 3)`."""
        g, p = self.grid, self.pixels
        lab_NPC = lab_HWC.reshape(g, p, g, p, 3).swapaxes(1, 2).reshape(g * g, p * p, 3)
        mean = lab_NPC.mean(axis=1)
        centred_NPC = lab_NPC - mean[:, None]
        covariance_NCC = centred_NPC.swapaxes(1, 2) @ centred_NPC / (p * p)
        deviation = np.sqrt(np.einsum("ncc->nc", covariance_NCC))
        return mean, deviation, covariance_NCC[:, (0, 0, 1), (1, 2, 2)] / 10

    def _edges(self, light_HW: np.ndarray) -> np.ndarray:
        """Return roots of histograms of gradient directions, `(N, ORIENTATIONS)`; two bins share each gradient."""
        down, right = np.gradient(light_HW)
        strength_P = np.hypot(down, right).ravel()
        bin_P = (np.arctan2(down, right).ravel() % np.pi) * (ORIENTATIONS / np.pi)
        lower_P = np.floor(bin_P)
        upper_weight_P = bin_P - lower_P
        lower_P = lower_P.astype(np.int64)
        total = self._histogram(lower_P % ORIENTATIONS, ORIENTATIONS, strength_P * (1 - upper_weight_P))
        total += self._histogram((lower_P + 1) % ORIENTATIONS, ORIENTATIONS, strength_P * upper_weight_P)
        return np.sqrt(total)

    def _texture(self, light_HW: np.ndarray) -> np.ndarray:
        """Return roots of histograms of uniform local binary patterns at radius 1, `(N, PATTERNS)`."""
        pattern_HW = local_binary_pattern(light_HW.round().astype(np.uint8), 8, 1, method="uniform")
        return np.sqrt(self._histogram(pattern_HW.ravel().astype(np.int64), PATTERNS, None))

    def _histogram(self, bin_P: np.ndarray, bins: int, weight_P: np.ndarray | None) -> np.ndarray:
        """Return the cells' histograms `(N, bins)`, averaged over their pixels."""
        count = self.grid**2 * bins
        return np.bincount(self._index_P * bins + bin_P, weight_P, count).reshape(-1, bins) / self.pixels**2

    def _around(self, x_ND: np.ndarray) -> np.ndarray:
        """Return the mean over the 5 x 5 cells centred at each cell; borders are replicated."""
        x_GGD = x_ND.reshape(self.grid, self.grid, -1)
        padded = np.pad(x_GGD, ((2, 2), (2, 2), (0, 0)), mode="edge")
        return sliding_window_view(padded, (5, 5), axis=(0, 1)).mean(axis=(-2, -1)).reshape(x_ND.shape)
