"""A folder of one's own: pictures or videos with a text file of the same name beside each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.errors import InputError
from infra.files import existing_folder, walk
from infra.registry import READERS
from infra.store.findings import Flagged, Skipped
from tasks.datasets.images.image_files import SUFFIXES as PICTURES
from tasks.datasets.own.division import SPLITS, USUAL_SHARES, Drawn, split_called
from tasks.datasets.own.rows import Row, grouped
from tasks.datasets.reader import Reader, Reading
from tasks.datasets.videos.media import SUFFIXES as VIDEOS

_TEXT = ".txt"
_MEDIA = (*PICTURES, ".webp", ".bmp", ".tif", ".tiff", *VIDEOS)
_LONGEST = 1 << 20  # bytes of a text file; a larger one holds no captions


@READERS.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(Reader):
    """Read a folder of your own: `a/dog.jpg`, or a video, beside `a/dog.txt`, each line of which is a caption."""

    dir: Path
    """The folder; files may lie in folders within."""
    split: str = ""
    """The shares of train, val and test, drawn by lot: 80/10/10 where the folders in it are not called so."""
    seed: int = 0
    """Of that draw."""

    def read(self) -> Reading:
        """Return the files that have a text, in the order of their paths."""
        drawn = Drawn(split=self.split or USUAL_SHARES, seed=self.seed)
        files = sorted(_files(existing_folder(self.dir, what="a folder of pictures or videos with texts")))
        media = [path for path in files if path.lower().endswith(_MEDIA)]
        if not media:
            raise InputError(
                f"{self.dir}: holds no pictures or videos; expected files that end in {', '.join(_MEDIA)}"
            )
        tops = {_top(path) for path in media}
        by_folder = not self.split and tops <= {*SPLITS}
        return Reading(
            rows=grouped(
                _rows(self.dir, media, {*files}, by_folder=by_folder),
                splits=None if by_folder else drawn,
            ),
            source={"media": len(media), **({} if by_folder else asdict(drawn))},
            images=self.dir.absolute(),
            notes=(
                f"guessed: the folders {', '.join(sorted(tops))} are the splits (--split 80/10/10 draws them)"
                if by_folder
                else str(drawn),
            ),
        )


def _files(folder: Path) -> Iterator[str]:
    for below, names in walk(folder):
        yield from (os.path.normpath(os.path.join(below, name)) for name in names)


def _top(path: str) -> str:
    """Return the split that the uppermost folder of a path is called by; empty where there is none."""
    top, _, rest = path.partition(os.sep)
    return split_called(top) if rest else ""


def _rows(
    folder: Path, media: list[str], files: set[str], *, by_folder: bool
) -> Iterator[Row | Skipped | Flagged]:
    texts = set()
    for path in media:
        split = _top(path) if by_folder else ""
        beside = os.path.splitext(path)[0] + _TEXT
        texts.add(beside)
        if beside not in files:
            yield Skipped(where=path, why=f"no {_TEXT} file of its name beside it", split=split)
            continue
        try:
            lines = _lines(folder / beside)
        except InputError as error:
            yield Skipped(where=beside, why=str(error), split=split)
            continue
        yield Row(where=beside, id=path, path=path, texts=tuple(lines), answers=(), split=split)
    for path in sorted(path for path in files - texts if path.lower().endswith(_TEXT)):
        yield Flagged(where=path, why="a text beside no picture or video")


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file that say something.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            read = file.read(_LONGEST + 1)
        if len(read) > _LONGEST:
            raise InputError(f"a text of more than {_LONGEST:,} bytes")
        return [line for line in read.decode("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "a text that is not UTF-8" if isinstance(error, ValueError) else "a text that cannot be read"
        ) from error
