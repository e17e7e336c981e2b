"""Safe opening of picture files: formats from a list, a size that is checked before decoding, and RGB of 8 bits.

Pillow by itself opens some forty formats by a file's content, whatever its name: one of them runs Ghostscript, several
are little tested. And a few kB can contain any number of pixels. Of a damaged JPEG it fills in what libjpeg could not
decode, without the warning: simplejpeg, whose pixels are the same, refuses one that libjpeg warns of.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from simplejpeg import decode_jpeg

from polypool.infra.digests import why_changed
from polypool.infra.errors import InputError
from polypool.infra.files import why_no_file

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that are opened, by Pillow's names."""
MAX_PIXELS = 1 << 26
"""Pixels of a picture, 8,192 x 8,192: more than cameras have (61 million), and 540 MB while it is converted."""
MAX_SMALL = 1 << 24
"""Pixels that are decoded of a picture that will be made small: 134 MB."""
_MAX_BYTES = 8 * MAX_PIXELS  # of the file: four channels of 16 bits, not compressed; some are read whole
_DAMAGED_JPEG = "a JPEG that does not decode without a warning; if it looks right, save it again"
_TOO_LARGE = "more than {:,} pixels; make it smaller"
_MAX_SCANS = 100  # of a progressive JPEG, which has about ten; each further one takes a tenth of a second
_SCAN = b"\xff\xda"
_TILE = (322, 323)  # TIFF's tags: width and length of a tile
_STRIP = 1 << 20  # pixels that are composed at a time
_INTEGERS = {255: 0, 65_535: 8, 2**31 - 1: 23}  # the largest value of a range, and its bits above eight
_FLOATS = (1.0, 255.0, 65_535.0)
_BITS, _MEANING = 258, 262  # of a sample; of its zero, which is white where this is 0

# above its own limit Pillow warns, and refuses only twice as much
warnings.simplefilter("error", Image.DecompressionBombWarning)


def load(path: str | Path, *, side: int = 0, digest: str = "") -> Image.Image | str:
    """Return an image file as RGB, upright, or why that cannot be done.

    Args:
        path: the file.
        side: the least length of its sides, where it will be made small: a JPEG decodes at a fraction of its size, in a
            fraction of the time. 0 for its own size.
        digest: its SHA-256, where that is known.
    """
    if why := why_no_file(path):
        return why
    if Path(path).stat().st_size > _MAX_BYTES:
        return f"a file of more than {_MAX_BYTES:,} bytes; make it smaller"
    if why := why_changed(path, digest):
        return why
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.info.get("progressive") and Path(path).read_bytes().count(_SCAN) > _MAX_SCANS:
                return f"a JPEG of more than {_MAX_SCANS} scans; save it again"
            return _upright(image, side)
    except UnidentifiedImageError:
        return f"does not decode as an image: none of {', '.join(FORMATS)}"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return _TOO_LARGE.format(MAX_PIXELS)
    except InputError as error:
        return str(error)
    except MemoryError:
        return "there is not enough memory to decode it"
    except Exception:  # Pillow raises anything from OSError to struct.error on a broken file
        return "does not decode as an image: cut short or damaged"


def still_picture(path: str | Path) -> bool:
    """Whether a file is a picture and not animated."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return getattr(image, "n_frames", 1) == 1
    except Exception:
        return False


def _upright(image: Image.Image, side: int) -> Image.Image:
    """Return an opened picture as RGB, rotated by its EXIF orientation."""
    _bounded(image, MAX_PIXELS)  # also where less is decoded: Pillow keeps all of a progressive JPEG
    if side:
        image.draft("RGB", (side, side))
        _bounded(image, MAX_SMALL)
    if isinstance(image, JpegImageFile):  # also those of several pictures, of which this is the first
        image = _without_warnings(image)
    ImageOps.exif_transpose(image, in_place=True)
    grey = image.format == "TIFF" and image.mode.startswith("I;16")
    return rgb(_sixteen_bits(image) if grey else image)


def _without_warnings(image: JpegImageFile) -> Image.Image:
    """Return the pixels of a JPEG, at the size that Pillow was asked for.

    Raises:
        InputError: libjpeg warns of damage.
    """
    assert image.fp is not None
    image.fp.seek(0)
    width, height = image.size
    try:
        x_HW3 = decode_jpeg(image.fp.read(), min_height=height, min_width=width)
    except ValueError as error:
        raise InputError(_DAMAGED_JPEG) from error
    if image.mode == "CMYK":  # whose colours Pillow converts in its own way
        return image
    decoded = Image.fromarray(x_HW3)
    decoded.info = image.info  # with the orientation
    return decoded


def _sixteen_bits(image: Image.Image) -> Image.Image:
    """Return a grey TIFF of 12 or 16 bits as one of 16 whose zero is black, as its tags say; Pillow ignores them."""
    tags = _tags(image)
    (bits,), meaning = tags[_BITS], tags[_MEANING]
    x_HW = np.asarray(image).astype(np.uint16) << (16 - bits)
    return Image.fromarray(x_HW if meaning else ~x_HW)


def _bounded(image: Image.Image, most: int) -> None:
    width, height = image.size
    if image.format == "TIFF":
        width, height = (
            max(side, _tags(image).get(tag, 0)) for side, tag in zip(image.size, _TILE, strict=True)
        )
    if width * height > most:
        raise InputError(_TOO_LARGE.format(most))


def _tags(image: Image.Image) -> Any:
    assert isinstance(image, TiffImageFile)
    return image.tag_v2


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` in mode RGB: transparency on white, more than 8 bits scaled down.

    16 bits lose the lower eight. The range of 32-bit integers is the smallest of 8, 16 and 31 bits that holds all of a
    picture's, that of floats the smallest from 0 to 1, 255 or 65,535.

    Raises:
        InputError: values out of these ranges, or NaN.
    """
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image) >> 8)
    if image.mode == "I":
        return _grey(_eight_bits(np.asarray(image)))
    if image.mode == "F":
        return _grey(_scaled(np.asarray(image)))
    return _on_white(image) if image.has_transparency_data else image.convert("RGB")


def _grey(x_HW: np.ndarray) -> Image.Image:
    return Image.fromarray(x_HW.astype(np.uint8)).convert("RGB")


def _eight_bits(x_HW: np.ndarray) -> np.ndarray:
    if x_HW.min() < 0:
        raise InputError("integers of 32 bits beyond 0 to 2,147,483,647, which have no shade of grey")
    highest = x_HW.max()
    return x_HW >> next(extra for top, extra in _INTEGERS.items() if highest <= top)


def _scaled(x_HW: np.ndarray) -> np.ndarray:
    if not (x_HW.min() >= 0 and x_HW.max() <= _FLOATS[-1]):  # NaN is neither
        raise InputError("floats beyond 0 to 1, 255 or 65,535, or not numbers, which have no shade of grey")
    highest = x_HW.max()
    return np.rint(x_HW * np.float32(255 / next(top for top in _FLOATS if highest <= top)))


def _on_white(image: Image.Image) -> Image.Image:
    """Return a picture on white, composed in strips: whole, it would be in memory four times."""
    width, height = image.size
    whole = Image.new("RGB", image.size)
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        whole.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return whole
