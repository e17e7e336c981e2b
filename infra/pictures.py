"""Safe decoding of picture files, and bounding boxes.

Formats are on an allowlist, sizes are checked before decoding, and the result is 8-bit RGB. Unrestricted, Pillow opens
some forty formats by content, whatever the file's name: one of them runs Ghostscript, several are little tested, and a
few kB can expand to any number of pixels. For a damaged JPEG, Pillow silently fills in the pixels that libjpeg could
not decode; simplejpeg, whose pixels are otherwise the same, fails on libjpeg's warnings.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from simplejpeg import decode_jpeg

from polypool.infra.digests import why_changed
from polypool.infra.errors import InputError
from polypool.infra.files import why_no_file

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Supported formats, by Pillow's names."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of picture files, in lower case."""
MAX_PIXELS = 1 << 26
"""Maximum number of pixels, 8,192 x 8,192: more than cameras have (61 million), and 540 MB during conversion."""
_BITS, _MEANING = 258, 262  # TIFF tags: bits per sample; photometric interpretation (0: zero is white)
BOXES = "boxes"
"""Name of the store column with each element's box: left, top, right and bottom as fractions."""
SCORES = "scores"
"""Name of the store column with each element's detection score."""

# between its limit and twice its limit Pillow only warns
warnings.simplefilter("error", Image.DecompressionBombWarning)


def load(path: str | Path, *, side: int = 0, digest: str = "") -> Image.Image | str:
    """Return a picture file as RGB with EXIF orientation applied, or the reason if it cannot be decoded.

    Args:
        path: the file.
        side: minimum length of its sides if it will be downsampled: JPEGs are then decoded at a fraction of their size
            and time. 0 for the full size.
        digest: its SHA-256, if known.
    """
    if why := why_no_file(path):
        return why
    if why := why_changed(path, digest):
        return why
    try:
        with Image.open(path, formats=FORMATS) as image:
            return _upright(image, side)
    except UnidentifiedImageError:
        return f"does not decode as an image: none of {', '.join(FORMATS)}"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return _TOO_LARGE
    except InputError as error:
        return str(error)
    except MemoryError:
        return "there is not enough memory to decode it"
    except Exception:  # Pillow raises anything from OSError to struct.error on a broken file
        return "does not decode as an image: cut short or damaged"


def is_picture(name: str) -> bool:
    """Whether a file name has the suffix of a picture and does not begin with a dot."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def still_picture(path: str | Path) -> bool:
    """Whether a file is a picture and not animated."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return getattr(image, "n_frames", 1) == 1
    except Exception:
        return False


_TOO_LARGE = f"more than {MAX_PIXELS:,} pixels; make it smaller"


def _upright(image: Image.Image, side: int) -> Image.Image:
    """Return an opened picture as RGB with EXIF orientation applied."""
    if image.width * image.height > MAX_PIXELS:
        raise InputError(_TOO_LARGE)
    if isinstance(image, TiffImageFile):
        bits = {*image.tag_v2.get(_BITS, (1,))}
        if bits - {1, 8, 16} or (
            bits == {16} and image.tag_v2.get(_MEANING) == 0
        ):  # Pillow ignores these tags
            raise InputError(
                "a TIFF with an unsupported number of bits, or with 16 bits whose zero is white; save it with 8 bits"
            )
    if side:
        image.draft("RGB", (side, side))
    if isinstance(image, JpegImageFile):  # includes the first picture of multi-picture files
        image = _without_warnings(image)
    image.load()
    # Pillow raises anything on malformed EXIF data, after it has turned intact pixels
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    return rgb(image)


def _without_warnings(image: JpegImageFile) -> Image.Image:
    """Return the pixels of a JPEG, at the size requested of Pillow.

    Raises:
        InputError: libjpeg warns of damage.
    """
    assert image.fp is not None
    image.fp.seek(0)
    width, height = image.size
    try:
        x_HW3 = decode_jpeg(image.fp.read(), min_height=height, min_width=width)
    except ValueError as error:
        raise InputError(
            "a JPEG that does not decode without a warning; if it looks right, save it again"
        ) from error
    if image.mode == "CMYK":  # Pillow converts their colours differently
        return image
    decoded = Image.fromarray(x_HW3)
    decoded.info = image.info  # contains the orientation
    return decoded


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` in mode RGB: transparency on white, the upper 8 bits of 16-bit values.

    Raises:
        InputError: floats, or integers outside 0 to 65,535, whose grey scale is undefined.
    """
    if image.mode.startswith("I"):  # Pillow reads some 16-bit formats as 32 bits
        x_HW = np.asarray(image)
        if x_HW.min() < 0 or x_HW.max() >= 1 << 16:
            raise InputError(
                "integers beyond 0 to 65,535, which have no shade of grey; save it with 8 or 16 bits"
            )
        sixteen = image.mode != "I" or x_HW.max() > 255
        return Image.fromarray((x_HW >> 8 if sixteen else x_HW).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise InputError("floats, which have no shade of grey; save it with 8 or 16 bits")
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def fractions(box_N4: np.ndarray | None, count: int, *, width: float, height: float) -> np.ndarray | None:
    """Convert boxes from pixels to fractions `(count, 4)`, float32; None if they are missing or invalid.

    Args:
        box_N4: left, top, right and bottom in pixels, or None.
        count: expected number.
        width, height: of the picture, in pixels.
    """
    if box_N4 is None or box_N4.shape != (count, 4) or not (width > 0 and height > 0):
        return None
    fraction_N4 = box_N4 / np.array([width, height, width, height], np.float32)
    return fraction_N4.astype(np.float32) if np.isfinite(fraction_N4).all() else None


def corners(centre_N4: np.ndarray) -> np.ndarray:
    """Convert boxes from centre and size to left, top, right and bottom, clipped to the picture.

    Args:
        centre_N4: centre x and y, width and height, as fractions of the picture's sides.
    """
    middle_N2, half_N2 = centre_N4[:, :2], centre_N4[:, 2:] / 2
    return np.concatenate([middle_N2 - half_N2, middle_N2 + half_N2], axis=1).clip(0, 1)


def best_regions(
    box_N4: np.ndarray, score_N: np.ndarray, *, most: int, least: int, threshold: float, overlap: float
) -> np.ndarray:
    """Return the indices of the regions to keep, in descending order of score.

    Greedy non-maximum suppression over all classes: a region is dropped if its intersection over union with a kept one
    exceeds `overlap`. Boxes with zero area, such as those outside the picture, come last.

    Args:
        box_N4: left, top, right and bottom.
        score_N: of the detector.
        most, least: maximum and minimum number of regions.
        threshold: minimum score of regions beyond the `least`.
        overlap: maximum intersection over union; 1 keeps all.
    """
    area_N = (box_N4[:, 2:] > box_N4[:, :2]).all(axis=1)
    wanted_N = area_N & (score_N >= threshold)
    kept: list[int] = []
    for number in np.lexsort((-score_N, ~area_N)).tolist():
        if len(kept) == most or (len(kept) >= least and not wanted_N[number]):
            break
        if overlap >= 1 or not kept or shared(box_N4[number], box_N4[kept]).max() <= overlap:
            kept.append(number)
    return np.array(kept, np.int64)


def shared(box_4: np.ndarray, box_N4: np.ndarray) -> np.ndarray:
    """Return the intersection over union of a box with each of N others, `(N,)`; 0 if both have zero area."""
    corner_N2 = np.maximum(box_4[:2], box_N4[:, :2])
    side_N2 = (np.minimum(box_4[2:], box_N4[:, 2:]) - corner_N2).clip(min=0)
    both_N = side_N2.prod(axis=1)
    either_N = (box_4[2:] - box_4[:2]).prod() + (box_N4[:, 2:] - box_N4[:, :2]).prod(axis=1) - both_N
    return np.divide(both_N, either_N, out=np.zeros_like(both_N), where=either_N > 0)
