from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from pictures import noise, write_ghost, write_odd, write_tiff
from PIL import Image, ImageOps
from programs import begin, end

from polypool.infra.errors import InputError
from polypool.infra.pictures.opening import MAX_PIXELS, MAX_SMALL, load, rgb, still_picture

RAMP = np.arange(256).reshape(16, 16)


def grey(path) -> np.ndarray:
    image = load(path)
    assert isinstance(image, Image.Image), image
    assert image.mode == "RGB"
    x_HW3 = np.asarray(image)
    assert (x_HW3 == x_HW3[..., :1]).all()
    return x_HW3[..., 0]


def as_before(image: Image.Image) -> np.ndarray:
    """What transparency and modes came to before pictures were made RGB in strips."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def test_what_is_no_picture_is_told_in_words_at_once_and_nothing_large_is_decoded(tmp_path):
    expected = write_odd(tmp_path)
    before = resident()
    found = {name: load(tmp_path / name) for name in expected}
    assert resident() - before < 40 << 20
    assert {name: why for name, why in found.items() if expected[name] not in why} == {}
    assert all(str(tmp_path) not in why for why in found.values()), "reasons are counted by their words"


def resident() -> int:
    """Return the most memory that this process ever had, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def test_no_other_program_is_started_for_a_picture(tmp_path):
    write_ghost(tmp_path / "ghost.jpg")
    program = (
        "import sys; from polypool.infra.pictures.opening import load\n"
        "sys.addaudithook(lambda event, _: event in ('subprocess.Popen', 'os.system', 'os.exec') and sys.exit(9))\n"
        "print(load(sys.argv[1]))"
    )
    code, out, _ = end(begin("-c", program, str(tmp_path / "ghost.jpg")))
    assert (code, out.split(":")[0]) == (0, "does not decode as an image")


def test_the_bound_is_of_pixels_and_larger_for_a_jpeg_that_is_not_decoded_whole(tmp_path):
    Image.new("L", (8192, 8192), 90).save(tmp_path / "a.jpg")
    Image.new("1", (8192, 8192)).save(tmp_path / "a.png")
    assert MAX_PIXELS == 8192 * 8192
    assert load(tmp_path / "a.png").size == (8192, 8192)
    assert f"{MAX_SMALL:,} pixels" in load(tmp_path / "a.png", side=320)
    small = load(tmp_path / "a.jpg", side=320)
    assert small.size == (1024, 1024)
    assert small.getpixel((5, 5)) == (90, 90, 90)
    Image.new("1", (4096, 4096)).save(tmp_path / "b.png")
    assert load(tmp_path / "b.png", side=320).size == (4096, 4096)


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
def test_ordinary_pictures_are_what_they_were_to_the_bit(tmp_path, suffix, modes):
    path = tmp_path / f"a.{suffix}"
    for mode in modes:
        noise().convert(mode).save(path)
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(load(path)), as_before(ImageOps.exif_transpose(image)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_upright(tmp_path, orientation):
    note = Image.Exif()
    note[0x0112] = orientation
    noise().save(tmp_path / "a.png", exif=note)
    with Image.open(tmp_path / "a.png") as image:
        np.testing.assert_array_equal(np.asarray(load(tmp_path / "a.png")), ImageOps.exif_transpose(image))


def test_transparency_over_many_strips_is_what_it_is_whole(monkeypatch):
    from polypool.infra.pictures import opening as module

    for image in (noise().convert("LA"), noise().convert("RGBA")):
        image.putalpha(noise(seed=1).convert("L"))
        whole = as_before(image)
        for pixels in (1, 7 * image.width, 1 << 20):
            monkeypatch.setattr(module, "_STRIP", pixels)
            np.testing.assert_array_equal(rgb(image), whole)


@pytest.mark.parametrize(
    ("dtype", "times"),
    [
        *(("u1", 1), ("u2", 257), ("i2", 128), ("u4", 1), ("u4", 257), ("i4", 257), ("i4", 8421504)),
        *(("f4", 1 / 255), ("f4", 1), ("f4", 257)),
    ],
)
def test_a_ramp_of_any_numbers_is_a_ramp(tmp_path, dtype, times):
    path = write_tiff(tmp_path / "a.tif", (RAMP * times).astype(dtype))
    lossy = 1 if dtype == "i2" else 0
    np.testing.assert_allclose(grey(path), RAMP // (2 if lossy else 1), atol=lossy)


def test_twelve_bits_and_zeros_that_are_white(tmp_path):
    packed = b"".join(
        bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255]) for a, b in (RAMP.reshape(-1, 2) * 16).tolist()
    )
    np.testing.assert_array_equal(
        grey(write_tiff(tmp_path / "a.tif", RAMP.astype("u2"), packed=packed)), RAMP
    )
    for dtype, times in (("u1", 1), ("u2", 257)):
        path = write_tiff(tmp_path / "b.tif", (RAMP * times).astype(dtype), white=True)
        np.testing.assert_array_equal(grey(path), 255 - RAMP)


def test_a_progressive_jpeg_of_the_usual_scans_is_read(tmp_path):
    noise().save(tmp_path / "a.jpg", progressive=True)
    assert load(tmp_path / "a.jpg").size == noise().size


@pytest.mark.parametrize("top", [65535, 4095])
def test_sixteen_bits_of_a_ppm(tmp_path, top):
    body = (RAMP / 255 * top).round().astype(">u2").tobytes()
    (tmp_path / "a.ppm").write_bytes(f"P5 16 16 {top}\n".encode() + body)
    np.testing.assert_allclose(grey(tmp_path / "a.ppm"), RAMP, atol=1)


def test_shades_between_two_are_rounded(tmp_path):
    path = write_tiff(tmp_path / "a.tif", np.array([[0, 0.3, 0.5, 0.9, 1]], np.float32))
    assert grey(path).tolist() == [[0, 76, 128, 230, 255]]


def test_numbers_without_a_shade_are_refused(tmp_path):
    for dtype, values in (
        ("i4", [-1, 3]),
        ("u4", [0, 2**31]),
        ("f4", [-0.1, 1]),
        ("f4", [0, 70_000]),
        ("f4", [0.5, np.nan]),
        ("f4", [0.5, np.inf]),
    ):
        path = write_tiff(tmp_path / "a.tif", np.array([values], dtype))
        assert "no shade of grey" in load(path), values
    with pytest.raises(InputError, match="no shade of grey"):
        rgb(Image.new("F", (3, 3), -1))


def test_rgb_takes_no_memory_but_the_result_s():
    image = Image.new("LA", (2048, 2048))
    tracemalloc.start()
    rgb(image)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_moves_is_no_still_picture(tmp_path):
    first, second = noise(), noise(seed=1)
    first.save(tmp_path / "still.webp")
    first.save(tmp_path / "moves.webp", save_all=True, append_images=[second])
    (tmp_path / "text.jpg").write_text("no picture")
    names = ("still.webp", "moves.webp", "text.jpg", "gone.jpg")
    assert [still_picture(tmp_path / name) for name in names] == [True, False, False, False]
