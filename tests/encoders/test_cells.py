from __future__ import annotations

import numpy as np
import pytest
from pictures import MODES, noise
from PIL import Image
from skimage.color import rgb2lab

from polypool.encoders.backbones.cells import Cells
from polypool.infra.errors import InputError
from polypool.infra.registry import BACKBONES

MEAN, DEVIATION, EDGES = slice(0, 3), slice(3, 6), slice(6, 14)
COVARIANCE, TEXTURE, CONTRAST, PLACE = slice(14, 17), slice(17, 27), slice(27, 41), slice(41, 43)


def halves(left: tuple[int, int, int], right: tuple[int, int, int]) -> Image.Image:
    image = Image.new("RGB", (64, 64), left)
    image.paste(right, (32, 0, 64, 64))
    return image


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (2, 300), (50, 40)])
def test_cells_take_any_mode_and_size(mode, size):
    (x_ND,) = Cells()([Image.new(mode, size)])
    assert x_ND.shape == (49, Cells.dim)
    assert x_ND.dtype == np.float32
    assert np.isfinite(x_ND).all()


def test_cells_of_one_colour_have_its_lab_values_and_nothing_else():
    (x_ND,) = Cells(grid=3)([Image.new("RGB", (30, 30), (200, 30, 90))])
    lab = rgb2lab(np.array([[[200, 30, 90]]], np.uint8))[0, 0]
    np.testing.assert_allclose(x_ND[:, MEAN], np.tile(lab, (9, 1)), rtol=1e-5)
    for part in (DEVIATION, EDGES, COVARIANCE, CONTRAST):
        np.testing.assert_allclose(x_ND[:, part], 0, atol=1e-4)


def test_cells_colour_moments_against_numpy():
    cells = Cells(grid=2, pixels=8)
    image = noise(16, 16)
    (x_ND,) = cells([image])
    lab_PC = rgb2lab(np.asarray(image))[8:, :8].reshape(-1, 3)  # row 1, column 0
    np.testing.assert_allclose(x_ND[2, MEAN], lab_PC.mean(0), rtol=1e-5)
    np.testing.assert_allclose(x_ND[2, DEVIATION], lab_PC.std(0), rtol=1e-5)
    expected = np.cov(lab_PC.T, bias=True)[[0, 0, 1], [1, 2, 2]] / 10
    np.testing.assert_allclose(x_ND[2, COVARIANCE], expected, rtol=1e-4)


def test_cells_are_in_rows_and_know_their_place():
    (x_ND,) = Cells(grid=4)([halves((0, 0, 0), (255, 255, 255))])
    light_GG = x_ND[:, 0].reshape(4, 4)
    assert (light_GG[:, :2] < 1).all()
    assert (light_GG[:, 2:] > 99).all()
    np.testing.assert_allclose(x_ND[:, PLACE][[0, 3, 12]], [[-1, -1], [-1, 1], [1, -1]])
    assert (Cells(grid=1)([noise()])[0][:, PLACE] == 0).all()


@pytest.mark.parametrize(("across", "expected"), [(True, 0), (False, 4)])
def test_edges_fall_into_the_bin_of_their_direction(across, expected):
    wave = np.tile(128 + 100 * np.sin(np.arange(96) / 3), (96, 1)).astype(np.uint8)
    image = Image.fromarray(wave if across else wave.T)
    (x_ND,) = Cells(grid=2, pixels=48)([image])
    energy = x_ND[:, EDGES] ** 2
    assert (energy[:, expected] > 0.99 * energy.sum(axis=1)).all()


def test_texture_is_the_root_of_a_distribution():
    (x_ND,) = Cells()([noise()])
    np.testing.assert_allclose((x_ND[:, TEXTURE] ** 2).sum(axis=1), 1, rtol=1e-5)


def test_contrast_is_against_the_cells_around():
    (x_ND,) = Cells(grid=7)([noise()])
    around = x_ND[:, MEAN].reshape(7, 7, 3)[0:5, 0:5].mean(axis=(0, 1))  # about row 2, column 2
    np.testing.assert_allclose(x_ND[16, CONTRAST][:3], x_ND[16, MEAN] - around, rtol=1e-3, atol=1e-3)


def test_cells_do_not_depend_on_the_batch():
    images = [noise(seed=seed) for seed in range(3)]
    together = Cells()(images)
    for image, x_ND in zip(images, together, strict=True):
        np.testing.assert_array_equal(Cells()([image])[0], x_ND)


@pytest.mark.parametrize("spec", ["cells(grid=0)", "cells(pixels=1)", "cells(gird=7)"])
def test_cells_refuse_bad_parameters(spec):
    with pytest.raises(InputError, match="cells"):
        BACKBONES.build(spec)
