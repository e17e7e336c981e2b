"""Share of damaged pictures and videos that are used, with other pixels than before, by format and damage.

python tests/fuzz/damage_table.py --count 100
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from places import PATHS

sys.path[:0] = PATHS
from clips import decoded, write_clip  # noqa: E402 (found where the line above looks)
from pictures import photograph  # noqa: E402

from polypool.infra.digests import digest_of, why_changed  # noqa: E402
from polypool.infra.pictures.opening import load  # noqa: E402
from polypool.infra.video.containers import BadVideo  # noqa: E402

_HEAD = 700  # bytes that are left whole where every 97th is flipped: what says how to decode the rest
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG": ("jpg", {"quality": 85}),
    "JPEG, progressive": ("jpg", {"quality": 85, "progressive": True}),
    "PNG": ("png", {}),
    "GIF": ("gif", {}),
    "WebP": ("webp", {}),
    "WebP, lossless": ("webp", {"lossless": True}),
    "TIFF": ("tif", {}),
    "TIFF, LZW": ("tif", {"compression": "tiff_lzw"}),
    "TIFF, Deflate": ("tif", {"compression": "tiff_adobe_deflate"}),
    "TIFF, JPEG": ("tif", {"compression": "jpeg"}),
    "BMP": ("bmp", {}),
    "PPM": ("ppm", {}),
}
CLIPS = {
    "H.264 in MP4": ("mp4", "libx264"),
    "VP9 in WebM": ("webm", "libvpx-vp9"),
    "MPEG-4 in AVI": ("avi", "mpeg4"),
}


def zeros(data: bytes, _: random.Random) -> bytes:
    middle = len(data) // 2
    return data[: middle - 250] + bytes(500) + data[middle + 250 :]


def flips(data: bytes, _: random.Random) -> bytes:
    return data[:_HEAD] + bytes(each ^ (255 * (at % 97 == 0)) for at, each in enumerate(data[_HEAD:]))


def cut(data: bytes, _: random.Random) -> bytes:
    return data[: len(data) // 2]


def one(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]


DAMAGE = {
    "500 bytes zeroed": zeros,
    "every 97th byte flipped": flips,
    "cut at half": cut,
    "a byte changed": one,
}


def by_pillow(path: Path) -> np.ndarray | str:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except Exception:
        return "refused"


def picture(path: Path) -> np.ndarray | str:
    image = load(path)
    return image if isinstance(image, str) else np.asarray(image)


def clip(path: Path) -> np.ndarray | str:
    try:
        return decoded(path, at_most=12)
    except BadVideo as bad:
        return str(bad)


def used(
    path: Path, readers: list[Callable[[Path], np.ndarray | str]], *, seed: int
) -> dict[str, list[bool]]:
    """Return for each damage which readers use the damaged file, and last whether the last one does with a digest."""
    data, digest, truth = path.read_bytes(), digest_of(path), [read(path) for read in readers]
    assert not any(isinstance(whole, str) for whole in truth), path
    found = {}
    for name, damage in DAMAGE.items():
        path.write_bytes(damage(data, random.Random(seed)))
        read_again = [read(path) for read in readers]
        pairs = zip(read_again, truth, strict=True)
        seen = [not isinstance(x, str) and not np.array_equal(x, whole) for x, whole in pairs]
        found[name] = [*seen, seen[-1] and not why_changed(path, digest)]
    path.write_bytes(data)
    return found


def row(name: str, cases: list[dict[str, list[bool]]]) -> str:
    """Return a row of the table: of each damage, how many of a hundred each reader used."""
    shares = [100 * np.mean([case[damage] for case in cases], axis=0) for damage in DAMAGE]
    cells = (" / ".join(f"{share:.0f}" for share in of_readers) for of_readers in shares)
    return f"| {name} | {' | '.join(cells)} |"


def main(*, count: int = 100, folder: Path | None = None) -> None:
    """Print the table: of 100 damaged files, those that Pillow uses / that are used here / that are, with a digest.

    Args:
        count: pictures of a format, and damaged copies of a clip.
        folder: JPEG pictures to damage; drawn ones by default.
    """
    files = sorted(folder.glob("*.jp*g"))[:count] if folder else []
    print(f"| of 100 | {' | '.join(DAMAGE)} |\n|---|{'---:|' * len(DAMAGE)}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (suffix, options) in FORMATS.items():
            cases = []
            for seed in range(len(files) or count):
                image = Image.open(files[seed]).convert("RGB") if files else photograph(seed=seed)
                image.save(path := Path(scratch) / f"a.{suffix}", **options)
                cases.append(used(path, [by_pillow, picture], seed=seed))
            print(row(name, cases), flush=True)
        for name, (suffix, codec) in CLIPS.items():
            path = write_clip(Path(scratch) / f"a.{suffix}", 48, codec=codec, pan=True)
            print(row(name, [used(path, [clip], seed=seed) for seed in range(count)]), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
