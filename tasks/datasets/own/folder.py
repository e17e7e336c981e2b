"""A folder of your own: pictures or videos with a text file of the same name beside each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import existing_folder
from polypool.infra.limits import LARGEST_TEXT
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Flagged, Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.own.rows import DividedReader, Row, grouped
from polypool.tasks.datasets.readers.folders import IMAGES, VIDEOS, files_below, media_below
from polypool.tasks.datasets.splits import SPLITS, split_called

_TEXT = ".txt"
_MEDIA = (*IMAGES, ".webp", ".bmp", ".tif", ".tiff", *VIDEOS)


@READERS.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(DividedReader):
    """Read a folder of your own: `a/dog.jpg`, or a video, beside `a/dog.txt`, each line of which is a caption."""

    dir: Path
    """The folder; files may be in folders within."""

    def read(self) -> Reading:
        """Return the files that have a text, in the order of their paths."""
        random = self.random
        folder = existing_folder(self.dir, what="a folder of pictures or videos with texts")
        media = sorted(media_below(folder, _MEDIA, what="pictures or videos"))
        tops = {_top(path) for path in media}
        by_folder = not self.split and tops <= {*SPLITS}
        note = (
            f"guessed: the folders {', '.join(sorted(tops))} are the splits (--split 80/10/10: random ones)"
        )
        return Reading(
            rows=grouped(self._rows(media, by_folder=by_folder), splits=random, own_splits=by_folder),
            source={"media": len(media), **({} if by_folder else asdict(random))},
            images=self.dir.absolute(),
            notes=(note if by_folder else str(random),),
        )

    def _rows(self, media: list[str], *, by_folder: bool) -> Iterator[Row | Skipped | Flagged]:
        texts = {path for path in files_below(self.dir) if path.lower().endswith(_TEXT)}
        lonely = set(texts)
        for path in media:
            split, text = _top(path) if by_folder else "", os.path.splitext(path)[0] + _TEXT
            lonely.discard(text)
            if text not in texts:
                yield Skipped(where=path, why=f"no {_TEXT} file of its name beside it", split=split)
                continue
            try:
                yield Row(where=text, id=path, path=path, texts=_lines(self.dir / text), split=split)
            except InputError as error:
                yield Skipped(where=text, why=str(error), split=split)
        for path in sorted(lonely):
            yield Flagged(where=path, why="a text beside no picture or video")


def _top(path: str) -> str:
    """Return the split that the uppermost folder of a path is called by; empty where there is none."""
    top, _, rest = path.partition(os.sep)
    return split_called(top) if rest else ""


def _lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a text file that are not empty.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            read = file.read(LARGEST_TEXT + 1)
        if len(read) > LARGEST_TEXT:
            raise InputError(f"a text of more than {LARGEST_TEXT:,} bytes")
        return tuple(line for line in read.decode("utf-8-sig").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise InputError("a text that is not UTF-8") from error
    except OSError as error:
        raise InputError("a text that cannot be read") from error
