"""Pictures: opening of files, and boxes."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from pictures import noise, photograph, write_ghost, write_odd, write_tiff
from PIL import Image, ImageOps
from programs import begin, end

from polypool.infra.digests import digest_of
from polypool.infra.errors import InputError
from polypool.infra.pictures import (
    MAX_PIXELS,
    best_regions,
    corners,
    fractions,
    load,
    rgb,
    still_picture,
)

RAMP = np.arange(256).reshape(16, 16)


def grey(path) -> np.ndarray:
    image = load(path)
    assert isinstance(image, Image.Image), image
    assert image.mode == "RGB"
    x_HW3 = np.asarray(image)
    assert (x_HW3 == x_HW3[..., :1]).all()
    return x_HW3[..., 0]


def as_before(image: Image.Image) -> np.ndarray:
    """Reference conversion to RGB, with transparency on white."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def test_bad_pictures_are_refused_without_large_decodes(tmp_path):
    expected = write_odd(tmp_path)
    before = resident()
    found = {name: load(tmp_path / name) for name in expected}
    assert resident() - before < 40 << 20
    assert {name: why for name, why in found.items() if expected[name] not in why} == {}
    assert all(str(tmp_path) not in why for why in found.values()), (
        "messages are grouped by text and must contain no path"
    )


def resident() -> int:
    """Return the peak memory of this process in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def test_loading_a_picture_starts_no_program(tmp_path):
    write_ghost(tmp_path / "ghost.jpg")
    program = (
        "import sys; from polypool.infra.pictures import load\n"
        "sys.addaudithook(lambda event, _: event in ('subprocess.Popen', 'os.system', 'os.exec') and sys.exit(9))\n"
        "print(load(sys.argv[1]))"
    )
    code, out, _ = end(begin("-c", program, str(tmp_path / "ghost.jpg")))
    assert (code, out.split(":")[0]) == (0, "does not decode as an image")


def test_largest_picture_loads_and_jpeg_is_downsampled(tmp_path):
    Image.new("L", (8192, 8192), 90).save(tmp_path / "a.jpg")
    assert MAX_PIXELS == 8192 * 8192
    small = load(tmp_path / "a.jpg", side=320)
    assert small.size == (1024, 1024)
    assert small.getpixel((5, 5)) == (90, 90, 90)
    Image.new("1", (8192, 8192)).save(tmp_path / "a.png")
    assert load(tmp_path / "a.png").size == (8192, 8192)


@pytest.mark.parametrize(
    ("suffix", "modes"),
    [
        ("png", ("1", "L", "LA", "P", "RGB", "RGBA")),
        ("tif", ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")),
        ("jpg", ("L", "RGB", "CMYK")),
        ("webp", ("L", "RGB", "RGBA")),
        ("gif", ("1", "L", "P", "RGB", "RGBA")),
        ("bmp", ("1", "L", "P", "RGB")),
    ],
)
def test_pixels_match_reference_rgb_conversion(tmp_path, suffix, modes):
    path = tmp_path / f"a.{suffix}"
    for mode in modes:
        noise().convert(mode).save(path)
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(load(path)), as_before(ImageOps.exif_transpose(image)))


def test_exif_orientation_is_applied(tmp_path):
    for orientation in range(1, 9):
        note = Image.Exif()
        note[0x0112] = orientation
        noise().save(tmp_path / "a.png", exif=note)
        with Image.open(tmp_path / "a.png") as image:
            np.testing.assert_array_equal(
                np.asarray(load(tmp_path / "a.png")), ImageOps.exif_transpose(image)
            )


ENTRIES = struct.pack(
    "<HHIHHHHI4sI", 0x112, 3, 1, 6, 0, 0x11A, 2, 3, b"72", 0
)  # a turn, and a resolution as text


@pytest.mark.parametrize(
    ("exif", "turns"),
    [(b"garbage", 0), (b"MM", 0), (bytes(20), 0), (b"II*\0\x08\0\0\0\x02\0" + ENTRIES, 3)],
)
def test_malformed_exif_does_not_discard_a_jpeg(tmp_path, exif, turns):
    noise().save(tmp_path / "a.jpg", exif=b"Exif\0\0" + exif)
    with Image.open(tmp_path / "a.jpg") as image:
        np.testing.assert_array_equal(
            np.asarray(load(tmp_path / "a.jpg")), np.rot90(np.asarray(image), turns)
        )


@pytest.mark.parametrize(("dtype", "times", "white"), [("u1", 1, False), ("u1", 1, True), ("u2", 257, False)])
def test_grey_tiffs_of_8_and_16_bits_load_exactly(tmp_path, dtype, times, white):
    path = write_tiff(tmp_path / "a.tif", (RAMP * times).astype(dtype), white=white)
    np.testing.assert_array_equal(grey(path), 255 - RAMP if white else RAMP)


def test_unsupported_grey_values_are_refused(tmp_path):
    packed = bytes(RAMP.size * 3 // 2)
    cases = [("i4", {}), ("f4", {}), ("u2", {"packed": packed}), ("u2", {"white": True})]
    for dtype, options in cases:
        found = load(write_tiff(tmp_path / "a.tif", RAMP.astype(dtype), **options))
        assert "unsupported number of bits" in found, (dtype, options)
    for mode, value in (("F", 0.5), ("I", -1), ("I", 1 << 16)):
        with pytest.raises(InputError, match="no shade of grey"):
            rgb(Image.new(mode, (3, 3), value))


def test_animation_is_not_a_still_picture(tmp_path):
    first, second = noise(), noise(seed=1)
    first.save(tmp_path / "still.webp")
    first.save(tmp_path / "moves.webp", save_all=True, append_images=[second])
    (tmp_path / "text.jpg").write_text("no picture")
    names = ("still.webp", "moves.webp", "text.jpg", "gone.jpg")
    assert [still_picture(tmp_path / name) for name in names] == [True, False, False, False]


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
def test_jpeg_pixels_match_pillow(kind, side, tmp_path):
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
        ("jpg", zeros, 2, _WARNS),
        ("jpg", flips, 0, _WARNS),
        ("jpg", lambda data: data[:-20], 0, _WARNS),
        ("png", zeros, 0, "cut short or damaged"),
        ("png", flips, 0, "cut short or damaged"),
        ("gif", flips, 0, "cut short or damaged"),
    ],
)
def test_damaged_picture_is_refused(suffix, damage: Callable[[bytes], bytes], most, words, tmp_path):
    found = []
    for seed in range(6):
        path = tmp_path / f"a.{suffix}"
        photograph(seed=seed).save(path)
        path.write_bytes(damage(path.read_bytes()))
        found.append(load(path))
    refused = [each for each in found if isinstance(each, str)]
    assert len(found) - len(refused) <= most
    assert all(words in each for each in refused), set(refused)


def test_digest_detects_change_in_valid_file(tmp_path):
    path = tmp_path / "a.bmp"
    photograph().save(path)
    digest = digest_of(path)
    assert isinstance(load(path, digest=digest), Image.Image)
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    assert load(path, digest=digest) == "changed since it was ingested: its SHA-256 differs"


def by_the_formula(box_N4, score_N, *, most, least, threshold, overlap):
    """Reference: greedy non-maximum suppression in loops, for boxes of nonzero area."""
    left = sorted(range(len(score_N)), key=lambda number: -score_N[number])
    kept = []
    while left and len(kept) < most:
        first = left.pop(0)
        if len(kept) >= least and score_N[first] < threshold:
            break
        kept.append(first)
        left = [other for other in left if over(box_N4[first], box_N4[other]) <= overlap]
    return kept


def over(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


@pytest.mark.parametrize("overlap", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(
    ("most", "least", "threshold"), [(5, 5, 0.0), (30, 1, 0.6), (30, 12, 0.6), (4, 1, 1.0)]
)
def test_best_regions_match_greedy_suppression(most, least, threshold, overlap):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        corner_N2, side_N2 = rng.random((40, 2)) * 0.5, rng.random((40, 2)) * 0.5 + 0.01
        box_N4, score_N = np.concatenate([corner_N2, corner_N2 + side_N2], axis=1), rng.random(40)
        how = {"most": most, "least": least, "threshold": threshold, "overlap": overlap}
        assert best_regions(box_N4, score_N, **how).tolist() == by_the_formula(box_N4, score_N, **how)


def test_zero_area_boxes_come_last_and_only_if_needed():
    box_N4 = np.array([[1, 0, 1, 0.5], [0, 0, 0.5, 0.5], [0, 1, 0.3, 1], [0.5, 0.5, 1, 1]])
    score_N = np.array([0.9, 0.2, 0.8, 0.3])
    how = {"most": 4, "threshold": 0.0, "overlap": 0.7}
    assert best_regions(box_N4, score_N, least=1, **how).tolist() == [3, 1]
    assert best_regions(box_N4, score_N, least=3, **how).tolist() == [3, 1, 0]


def test_corners_are_clipped_to_the_picture():
    centre_N4 = np.array([[0.5, 0.4, 0.2, 0.6], [0.1, 0.9, 0.4, 0.4]])
    np.testing.assert_allclose(corners(centre_N4), [[0.4, 0.1, 0.6, 0.7], [0.0, 0.7, 0.3, 1.0]], atol=1e-12)


def test_fractions_convert_boxes_or_return_none():
    box_N4 = np.array([[10, 20, 30, 40]], np.float32)
    np.testing.assert_allclose(fractions(box_N4, 1, width=40, height=80), [[0.25, 0.25, 0.75, 0.5]])
    assert fractions(box_N4, 2, width=40, height=80) is None
    assert fractions(box_N4, 1, width=0, height=80) is None
    assert fractions(box_N4 * np.nan, 1, width=40, height=80) is None
    assert fractions(None, 1, width=40, height=80) is None
