"""Synthetic pictures."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I"]
_LARGE = {"png": {}, "tif": {"compression": "tiff_lzw"}, "jpg": {}}


def noise(height: int = 60, width: int = 80, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def photograph(mode: str = "RGB", *, seed: int = 0) -> Image.Image:
    """Return a picture of soft colours with grain, like a photograph."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize(
        (203, 151), Image.Resampling.BICUBIC
    )
    grain = rng.integers(-20, 21, (151, 203, 3))
    return Image.fromarray((np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)).convert(mode)


def write_tiff(
    path: Path,
    x_HW: np.ndarray,
    *,
    white: bool = False,
    packed: bytes = b"",
) -> Path:
    """Write a greyscale TIFF of any number type.

    Args:
        path: the file.
        x_HW: pixel values.
        white: zero is white.
        packed: the values in 12 bits each.
    """
    height, width = x_HW.shape
    bits, kind = 12 if packed else 8 * x_HW.itemsize, {"u": 1, "i": 2, "f": 3}[x_HW.dtype.kind]
    data = packed or x_HW.astype(x_HW.dtype.newbyteorder("<")).tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 0 if white else 1, 277: 1, 339: kind}
    at = 8 + 2 + 12 * (len(tags) + 3) + 4
    tags |= {273: at, 278: height, 279: len(data)}
    rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags))
    path.write_bytes(head + rows + struct.pack("<I", 0) + data)
    return path


def write_ghost(path: Path) -> None:
    """Write PostScript, which Pillow passes to Ghostscript under any file name."""
    path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n0 0 9 9 rectfill\nshowpage\n%%EOF\n"
    )


def write_odd(folder: Path) -> dict[str, str]:
    """Write a file of every refused kind; return their names, each with a part of the expected reason."""
    write_ghost(folder / "ghost.jpg")
    (folder / "empty.jpg").touch()
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "device.jpg").symlink_to("/dev/zero")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    Image.new("RGB", (9, 9)).save(folder / "icon.jpg", format="ICO")
    large = Image.new("1", (8193, 8192))
    for suffix, options in _LARGE.items():
        large.save(folder / f"large.{suffix}", **options)
    (folder / "larger.png").write_bytes(_declared(60_000, 60_000))
    noise().save(folder / "cut.png")
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:3000])
    pixels = "more than 67,108,864 pixels"
    return {
        "gone.jpg": "no such file",
        "a\0b.jpg": "no such file",
        "ghost.jpg": "none of JPEG, PNG",
        "icon.jpg": "none of JPEG, PNG",
        "empty.jpg": "an empty file",
        "folder.jpg": "a folder",
        "pipe.jpg": "a pipe, a device or a socket",
        "device.jpg": "a pipe, a device or a socket",
        "loop.jpg": "cannot be opened: Too many levels",
        "cut.png": "cut short or damaged",
        "larger.png": pixels,
    } | {f"large.{suffix}": pixels for suffix in _LARGE}


def _declared(width: int, height: int) -> bytes:
    """Return a PNG that ends soon after its header."""
    data = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + data
    return head + struct.pack(">I", zlib.crc32(data)) + b"\0\0\0\x09IDAT"
