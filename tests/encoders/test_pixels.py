import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from polypool.encoders.visual.pixels import IMAGENET, ImageTransform
from polypool.infra.compute.randomness import uniform
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
    """Write six images of different sizes and modes."""
    paths = []
    for seed, mode in enumerate(("RGB", "L", "RGBA", "P", "CMYK", "1")):
        paths.append(tmp_path / f"{seed}.{'tif' if mode == 'CMYK' else 'png'}")
        Image.fromarray(noise(20 + 5 * seed, 40 - 3 * seed, seed)).convert(mode).save(paths[-1])
    return paths


@pytest.mark.parametrize("shape", [(30, 50), (5, 7), (1, 1), (8, 8), (3, 40)])
def test_whole_image_is_resized_bilinearly(shape):
    image = noise(*shape)
    ours = plain().square(Image.fromarray(image))
    theirs = F.interpolate(torch.from_numpy(image).permute(2, 0, 1)[None].float(), (8, 8), mode="bilinear")
    np.testing.assert_allclose(ours, theirs[0].permute(1, 2, 0), rtol=1e-5, atol=1e-3)


def test_antialias_averages_skipped_pixels():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::8] = 255  # each output pixel covers one stripe, but its four nearest input pixels miss it
    rough, smooth = (plain(antialias=a).square(Image.fromarray(stripes)) for a in (False, True))
    assert rough.max() == 0
    np.testing.assert_allclose(smooth[:, 1:-1], 255 / 8, atol=6)


def test_random_numbers_determine_crop_and_flip():
    image = noise(20, 41)
    for u, flip in (
        ((0.0, 0.0, 0.0, 0.51), False),
        ((0.5, 0.999, 0.25, 0.49), True),
        ((0.999, 0.3, 0.3, 0.9), False),
        ((0.25, 0.7, 0.999, 0.1), True),
    ):
        ratio = 0.6 + 0.4 * u[0]
        height, width = int(20 * ratio), int(41 * ratio)
        left, top = int(u[1] * (41 - width + 1)), int(u[2] * (20 - height + 1))
        part = Image.fromarray(image[top : top + height, left : left + width])
        expected = plain().square(part)[:, :: -1 if flip else 1]
        np.testing.assert_array_equal(plain().square(Image.fromarray(image), u), expected)


def test_colour_normalisation_matches_the_network(towers):
    image = np.array([[[10, 100, 200]]], np.uint8)
    cnn, (_, patches) = ENCODERS.get("cnn"), build(towers["vit"], size=32)
    of_model = [(10 / 255 - 0.1) / 0.4, (100 / 255 - 0.2) / 0.5, (200 / 255 - 0.3) / 0.6]
    imagenet = [(10 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (200 / 255 - 0.406) / 0.225]
    for transform, expected in (
        (cnn.transform({}, size=32), [200 - 102.9801, 100 - 115.9465, 10 - 122.7717]),
        (cnn.transform({}, name="resnet152", size=32), imagenet),
        (patches, of_model),
    ):
        pixels = transform(Image.fromarray(image))
        assert pixels.shape == (3, 32, 32)
        assert pixels.dtype == np.float32
        np.testing.assert_allclose(pixels[:, 3, 5], expected, rtol=1e-5)
    assert patches.antialias
    assert IMAGENET["mean"] == pytest.approx([0.485 * 255, 0.456 * 255, 0.406 * 255])


def test_evaluation_reads_whole_images_in_any_mode(files):
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


def test_augmentation_depends_only_on_sample_and_seed(files):
    data = Pixels(files, transform=plain(cells=16), augment=AUGMENTATIONS.build("drop(p=0.5)"), threads=3)
    again = Pixels(files, transform=plain(cells=16), augment=AUGMENTATIONS.build("drop(p=0.5)"), threads=1)
    item_B, sample_B = np.array([3, 0, 3, 5]), np.array([8, 1, 2, 30])
    pixels, mask_BN = data.batch(item_B, sample_B=sample_B, draw=partial(draw, 1))
    alone, mask_1N = again.batch(item_B[2:3], sample_B=sample_B[2:3], draw=partial(draw, 1))
    assert torch.equal(pixels[2], alone[0])
    assert torch.equal(mask_BN[2], mask_1N[0])
    assert not torch.equal(pixels[0], pixels[2])  # the same image with another caption
    assert not torch.equal(mask_BN[0], mask_BN[2])
    other, other_mask = data.batch(item_B, sample_B=sample_B, draw=partial(draw, 2))
    assert not torch.equal(pixels, other)
    assert not torch.equal(mask_BN, other_mask)
    assert 16 < mask_BN.sum() < 48


def test_grid_drop_rates_match_authors_code(files):
    data = Pixels(files, transform=plain(size=1, cells=256), augment=AUGMENTATIONS.build("grid_drop(p=0.2)"))
    number = np.arange(300)
    mask_BN = data.batch(number % 6, sample_B=number, draw=partial(draw, 0))[1]
    assert 1 - mask_BN.float().mean() == pytest.approx(0.095, abs=0.005)
    assert mask_BN.all(dim=1).float().mean() == pytest.approx(0.2, abs=0.04)


BEFORE = {"vit": 1, "clip": 1, "siglip": 0, "dinov2": 1, "registers": 5}


def build(folder: Path, **params):
    kind = ENCODERS.get("patches")
    params = {"name": str(folder), **params}
    assets = json.loads(json.dumps(kind.prepare(**params)))  # as stored in a checkpoint
    inside = ", ".join(f"{key}={value!r}" for key, value in params.items())
    encoder = ENCODERS.build(f"patches({inside})", assets)
    return encoder, kind.transform(assets, **params)


@pytest.mark.parametrize("name", BEFORE)
def test_patches_match_last_states_of_vision_model(towers, name):
    from transformers import AutoModel

    encoder, transform = build(towers[name], width=6, size=32)
    encoder.load_pretrained()
    assert (encoder.reads, encoder.width, transform.size, transform.cells) == ("pixels", 6, 32, 16)
    whole = AutoModel.from_pretrained(towers[name]).eval()
    pixels, mask_BN = torch.randn(2, 3, 32, 32), torch.rand(2, 16) > 0.3
    state_BLH = getattr(whole, "vision_model", whole)(pixels).last_hidden_state
    x_BND, mask = encoder.eval()(pixels, mask_BN)
    assert state_BLH.shape[1] == BEFORE[name] + 16
    assert mask is mask_BN
    torch.testing.assert_close(x_BND, encoder.fc(state_BLH[:, BEFORE[name] :]), rtol=1e-4, atol=1e-5)
