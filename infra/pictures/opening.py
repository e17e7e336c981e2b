"""The one door by which files of pictures are opened: formats from a list, and a size that is known before decoding.

Pillow by itself opens some forty formats by what a file holds, whatever its name: one of them runs Ghostscript, several
are of no use here and little tested. And a few kB can stand for any number of pixels.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from infra.errors import InputError
from infra.files import why_no_file
from infra.pictures.rgb import rgb

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is opened, by Pillow's names; all else is no picture."""
MAX_PIXELS = 1 << 26
"""Pixels of a picture, 8,192 x 8,192: more than cameras have (61 million), and 540 MB while it is made RGB."""
MAX_SMALL = 1 << 24
"""Pixels that are decoded of one that is to be made small: 134 MB."""
_MAX_BYTES = 8 * MAX_PIXELS  # of the file: four channels of 16 bits, not compressed; some are read whole
_TOO_LARGE = "more than {:,} pixels; make it smaller"
_MAX_SCANS = (
    100  # of a progressive JPEG, which has about ten; a hundred bytes of another cost a tenth of a second
)
_SCAN = b"\xff\xda"
_TILE = (322, 323)  # TIFF's tags: width and length of a tile
_BITS, _MEANING = 258, 262  # of a sample; of its zero, which is white where this is 0

# above its own limit Pillow warns before it refuses; here nothing so large is opened
warnings.simplefilter("error", Image.DecompressionBombWarning)


def load(path: str | Path, *, side: int = 0) -> Image.Image | str:
    """Return an image file as RGB, upright, or why that cannot be done.

    Args:
        path: the file.
        side: where it is to be made small, what its sides must still measure: a JPEG decodes at a fraction of its size,
            in a fraction of the time. 0: its own size.
    """
    if why := why_no_file(path):
        return why
    if Path(path).stat().st_size > _MAX_BYTES:
        return f"a file of more than {_MAX_BYTES:,} bytes; make it smaller"
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
    """Whether a file is a picture that does not move."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return getattr(image, "n_frames", 1) == 1
    except Exception:
        return False


def _upright(image: Image.Image, side: int) -> Image.Image:
    """Return an opened picture as RGB, as a camera's note on how it was held says."""
    _bounded(image, MAX_PIXELS)  # of the whole, even where less is decoded: a progressive JPEG is kept whole
    if side:
        image.draft("RGB", (side, side))
        _bounded(image, MAX_SMALL)
    ImageOps.exif_transpose(image, in_place=True)
    grey = image.format == "TIFF" and image.mode.startswith("I;16")
    return rgb(_sixteen_bits(image) if grey else image)


def _sixteen_bits(image: Image.Image) -> Image.Image:
    """Return a grey TIFF of 12 or 16 bits as one of 16 whose zero is black; Pillow leaves that to its tags."""
    (bits,), meaning = image.tag_v2[_BITS], image.tag_v2[_MEANING]
    x_HW = np.asarray(image).astype(np.uint16) << (16 - bits)
    return Image.fromarray(x_HW if meaning else ~x_HW)


def _bounded(image: Image.Image, most: int) -> None:
    width, height = image.size
    if image.format == "TIFF":
        width, height = (
            max(side, image.tag_v2.get(tag, 0)) for side, tag in zip(image.size, _TILE, strict=True)
        )
    if width * height > most:
        raise InputError(_TOO_LARGE.format(most))
