from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pictures import photograph
from PIL import Image, ImageOps

from polypool.infra.digests import digest_of
from polypool.infra.pictures.opening import load

_WARNS = "a JPEG that does not decode without a warning"


KINDS = {
    "whole": ("RGB", {}),
    "half": ("RGB", {"subsampling": 1, "quality": 90}),
    "full": ("RGB", {"subsampling": 0, "progressive": True}),
    "restarts": ("RGB", {"restart_marker_rows": 1}),
    "plain": ("RGB", {"keep_rgb": True}),
    "grey": ("L", {"progressive": True}),
    "four": ("CMYK", {}),
    "turned": ("RGB", {"exif": Image.Exif()}),
}
KINDS["turned"][1]["exif"][0x112] = 6  # a quarter turn


@pytest.mark.parametrize("side", [0, 90, 30])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_of_a_jpeg_are_those_of_pillow(kind, side, tmp_path):
    mode, options = KINDS[kind]
    photograph(mode).save(tmp_path / "a.jpg", **options)
    with Image.open(tmp_path / "a.jpg") as image:
        if side:
            image.draft("RGB", (side, side))
        expected = ImageOps.exif_transpose(image).convert("RGB")
    np.testing.assert_array_equal(np.asarray(load(tmp_path / "a.jpg", side=side)), np.asarray(expected))


def zeros(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(500) + data[middle + 500 :]


def flips(data: bytes) -> bytes:
    return data[:700] + bytes(each ^ 255 if at % 97 == 0 else each for at, each in enumerate(data[700:]))


@pytest.mark.parametrize(
    ("suffix", "damage", "most", "words"),
    [
        ("jpg", zeros, 6, _WARNS),
        ("jpg", flips, 0, _WARNS),
        ("jpg", lambda data: data[:-20], 0, _WARNS),
        ("png", zeros, 0, "cut short or damaged"),
        ("png", flips, 0, "cut short or damaged"),
        ("gif", flips, 0, "cut short or damaged"),
    ],
)
def test_a_damaged_picture_is_refused(suffix, damage: Callable[[bytes], bytes], most, words, tmp_path):
    found = []
    for seed in range(20):
        path = tmp_path / f"a.{suffix}"
        photograph(seed=seed).save(path)
        path.write_bytes(damage(path.read_bytes()))
        found.append(load(path))
    refused = [each for each in found if isinstance(each, str)]
    assert len(found) - len(refused) <= most
    assert all(words in each for each in refused), set(refused)


@pytest.mark.parametrize("suffix", ["jpg", "webp", "bmp", "tif", "ppm", "gif"])
def test_a_digest_finds_what_a_format_does_not(suffix, tmp_path):
    path = Path(tmp_path / f"a.{suffix}")
    photograph().save(path)
    digest = digest_of(path)
    assert isinstance(load(path, digest=digest), Image.Image)
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    assert load(path, digest=digest) == "changed since it was ingested: its SHA-256 differs"
