from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from polypool.encoders.visual.pixels import IMAGENET, ImageTransform
from polypool.infra.compute.randomness import uniform
from polypool.infra.errors import InputError
from polypool.infra.registry import AUGMENTATIONS, ENCODERS
from polypool.tasks.inputs.visuals import Pixels


def draw(seed, sample, element, stream):
    return uniform(seed, stream, sample, element)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def plain(size: int = 8, **changes) -> ImageTransform:
    return ImageTransform(
        **{"size": size, "cells": 4, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)} | changes
    )


@pytest.fixture
def files(tmp_path):
    """Six images of many sizes and modes."""
    paths = []
    for seed, mode in enumerate(("RGB", "L", "RGBA", "P", "CMYK", "1")):
        paths.append(tmp_path / f"{seed}.{'tif' if mode == 'CMYK' else 'png'}")
        Image.fromarray(noise(20 + 5 * seed, 40 - 3 * seed, seed)).convert(mode).save(paths[-1])
    return paths


@pytest.mark.parametrize("shape", [(30, 50), (5, 7), (1, 1), (8, 8), (3, 40)])
def test_the_whole_image_is_squashed_by_linear_interpolation(shape):
    image = noise(*shape)
    ours = plain().square(Image.fromarray(image))
    theirs = F.interpolate(torch.from_numpy(image).permute(2, 0, 1)[None].float(), (8, 8), mode="bilinear")
    np.testing.assert_allclose(ours, theirs[0].permute(1, 2, 0), rtol=1e-5, atol=1e-3)


def test_smoothing_before_making_smaller_averages_what_is_left_out():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::8] = 255  # each new pixel covers one stripe, and the four nearest old pixels miss it
    rough, smooth = (plain(antialias=a).square(Image.fromarray(stripes)) for a in (False, True))
    assert rough.max() == 0
    np.testing.assert_allclose(smooth[:, 1:-1], 255 / 8, atol=6)


def test_a_part_is_cut_where_the_numbers_say():
    image = noise(20, 41)
    for u, flip in (
        ((0.0, 0.0, 0.0, 0.9), False),
        ((0.5, 0.999, 0.25, 0.1), True),
        ((1.0, 0.3, 0.3, 0.5), False),
    ):
        ratio = 0.6 + 0.4 * u[0]
        height, width = int(20 * ratio), int(41 * ratio)
        left, top = int(u[1] * (41 - width + 1)), int(u[2] * (20 - height + 1))
        part = Image.fromarray(image[top : top + height, left : left + width])
        expected = plain().square(part)
        np.testing.assert_array_equal(
            plain().square(Image.fromarray(image), u), expected[:, ::-1] if flip else expected
        )


def test_parts_and_mirroring_are_as_frequent_as_they_should_be():
    """A picture whose red is its column and whose green is its row shows where each part came from."""
    side, count = 100, 2000
    place = np.zeros((side, side, 3), np.uint8)
    place[..., 0], place[..., 1] = np.arange(side), np.arange(side)[:, None]
    u = uniform(0, np.arange(count)[:, None], np.arange(4))
    corners = [
        plain(size=100).square(Image.fromarray(place), each)[[0, 0, -1, -1], [0, -1, 0, -1]] for each in u
    ]
    x, y = np.array(corners)[..., 0], np.array(corners)[..., 1]
    flipped = x[:, 0] > x[:, 1]
    ratio = (np.abs(x[:, 1] - x[:, 0]) + 1) / side
    assert flipped.mean() == pytest.approx(0.5, abs=0.04)
    np.testing.assert_allclose(ratio, (y[:, 2] - y[:, 0] + 1) / side, atol=1e-6)  # one ratio for both sides
    assert ratio.min() >= 0.6
    assert ratio.max() > 0.98
    assert ratio.mean() == pytest.approx(0.795, abs=0.01)  # sides are rounded down
    left, room = np.minimum(x[:, 0], x[:, 1]), 1 - ratio
    far = room > 0.1
    share = left[far] / (side * room[far])
    assert share.mean() == pytest.approx(0.5, abs=0.03)
    assert share.min() < 0.05
    assert share.max() == pytest.approx(1, abs=0.01)  # the last position is reached too
    assert abs(np.corrcoef(left[far], y[far, 0])[0, 1]) < 0.25  # the ratio is common, the rest is not


def test_colours_are_those_of_the_network():
    image = np.array([[[10, 100, 200]]], np.uint8)
    cnn = ENCODERS.get("cnn")
    for transform, expected in (
        (cnn.transform({}, size=32), [200 - 102.9801, 100 - 115.9465, 10 - 122.7717]),
        (
            cnn.transform({}, name="resnet152", size=32),
            [(10 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (200 / 255 - 0.406) / 0.225],
        ),
    ):
        pixels = transform(Image.fromarray(image))
        assert pixels.shape == (3, 32, 32)
        assert pixels.dtype == np.float32
        np.testing.assert_allclose(pixels[:, 3, 5], expected, rtol=1e-5)
    assert IMAGENET["mean"] == pytest.approx([0.485 * 255, 0.456 * 255, 0.406 * 255])


def test_evaluation_sees_whole_images_of_any_mode(files):
    pixels, mask_BN = Pixels(files, transform=plain(), augment=AUGMENTATIONS.build("drop")).batch(
        np.array([4, 1]), sample_B=np.array([9, 9]), draw=None
    )
    assert pixels.shape == (2, 3, 8, 8)
    assert pixels.dtype == torch.float32
    assert mask_BN.dtype == torch.bool
    assert mask_BN.all()
    assert mask_BN.shape == (2, 4)
    grey = Pixels(files, transform=plain()).batch(np.array([1]), sample_B=np.array([1]), draw=None)[0][0]
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(pixels[1], grey)


def test_training_depends_on_sample_and_seed_and_not_on_batch_mates(files):
    data = Pixels(files, transform=plain(cells=16), augment=AUGMENTATIONS.build("drop(p=0.5)"), threads=3)
    again = Pixels(files, transform=plain(cells=16), augment=AUGMENTATIONS.build("drop(p=0.5)"), threads=1)
    item_B, sample_B = np.array([3, 0, 3, 5]), np.array([8, 1, 2, 30])
    pixels, mask_BN = data.batch(item_B, sample_B=sample_B, draw=partial(draw, 1))
    alone, mask_1N = again.batch(item_B[2:3], sample_B=sample_B[2:3], draw=partial(draw, 1))
    assert torch.equal(pixels[2], alone[0])
    assert torch.equal(mask_BN[2], mask_1N[0])
    assert not torch.equal(pixels[0], pixels[2])  # the same image for another caption
    assert not torch.equal(mask_BN[0], mask_BN[2])
    other, other_mask = data.batch(item_B, sample_B=sample_B, draw=partial(draw, 2))
    assert not torch.equal(pixels, other)
    assert not torch.equal(mask_BN, other_mask)
    assert 16 < mask_BN.sum() < 48


def test_the_grid_rule_drops_cells_as_often_as_in_the_code(files):
    data = Pixels(files, transform=plain(size=1, cells=256), augment=AUGMENTATIONS.build("grid_drop(p=0.2)"))
    number = np.arange(1000)
    mask_BN = data.batch(number % 6, sample_B=number, draw=partial(draw, 0))[1]
    assert 1 - mask_BN.float().mean() == pytest.approx(0.095, abs=0.005)
    assert mask_BN.all(dim=1).float().mean() == pytest.approx(0.2, abs=0.04)


def test_a_missing_image_is_named_before_training(files, tmp_path):
    for gone in (tmp_path / "gone.png", tmp_path / "nowhere" / "0.png"):
        with pytest.raises(InputError, match=r"1 of 7 images are missing, the first is .*" + gone.name):
            Pixels([*files, gone], transform=plain())


def test_a_broken_image_is_named(files):
    files[2].write_bytes(files[2].read_bytes()[:60])
    data = Pixels(files, transform=plain())
    with pytest.raises(InputError, match=r"2\.png: does not decode"):
        data.batch(np.arange(6), sample_B=np.arange(6), draw=None)
    files[3].unlink()
    with pytest.raises(InputError, match=r"3\.png: no such file"):
        data.batch(np.array([3]), sample_B=np.array([3]), draw=None)
