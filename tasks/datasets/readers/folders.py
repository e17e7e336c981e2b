"""Files below a folder: images by number or name, videos by id, any file by its path."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.files import existing_folder, identity, make_folder
from polypool.infra.pictures import SUFFIXES, is_picture
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reader, Reading
from polypool.tasks.datasets.corpus import Item
from polypool.tasks.datasets.splits import Published

VIDEOS = (
    *(".mp4", ".avi", ".webm", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".mts", ".m2ts"),
    *(".wmv", ".flv", ".3gp", ".3g2", ".gif"),
)
FRAMES = "/"
"""Suffix of the path of a folder of frames."""
_NUMBER = re.compile(r"0*(\d+)$")


class Listing:
    """Tests whether files are below a folder. Each subfolder is listed once, when a file in it is first looked up.

    On a network disk, testing 123,287 files one by one is slow, and so is listing the whole disk.

    Args:
        folder: that relative paths start from.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder
        self._names: dict[str, set[str]] = {}

    def has(self, path: str) -> bool:
        """Whether the file exists, or the folder if the path ends in `/`."""
        below, name = os.path.split(path.rstrip(FRAMES))
        if below not in self._names:
            try:
                with os.scandir(os.path.join(self._folder, below)) as entries:
                    self._names[below] = {entry.name + FRAMES * entry.is_dir() for entry in entries}
            except (OSError, ValueError):  # no such folder, or a name that no folder can have
                self._names[below] = set()
        return name + FRAMES * path.endswith(FRAMES) in self._names[below]


class ImageFiles:
    """The images below a folder, at any depth.

    An image `7` is `7.jpg`, or a file whose name ends in that number, such as `COCO_train2014_000000000007.jpg`.

    Raises:
        InputError: a missing folder, or one without images.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = existing_folder(folder, what="the folder of images")
        self._paths: dict[str, list[str]] = {}
        for path in media_below(self.folder, SUFFIXES, what="images"):
            stem = os.path.splitext(os.path.basename(path))[0]
            for id in {stem, *_NUMBER.findall(stem)}:
                self._paths.setdefault(id, []).append(path)

    def find(self, id: str, *, prefer: str = "") -> str | None:
        """Return an image's path below the folder, or None.

        Of several files, one with `prefer` in its path, such as `train2014`, comes first, then the first by name.
        """
        paths = self._paths.get(id)
        return min(paths, key=lambda path: (prefer not in path, path)) if paths else None


def files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files, relative to the folder.

    Links are followed, but each folder is entered only once, so that a link to a parent folder causes no loop.
    """
    seen: set[tuple[int, int]] = set()
    for subfolder, below, names in os.walk(folder, followlinks=True):
        status = os.stat(subfolder)
        if (status.st_dev, status.st_ino) in seen:
            below.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from (os.path.relpath(os.path.join(subfolder, name), folder) for name in names)


def media_below(folder: Path, suffixes: tuple[str, ...], *, what: str) -> list[str]:
    """Return the paths of the files with one of these suffixes, in any case, relative to the folder.

    Raises:
        InputError: no such file.
    """
    paths = [path for path in files_below(folder) if os.path.splitext(path)[1].lower() in suffixes]
    if not paths:
        raise InputError(f"{folder}: holds no {what}; expected files that end in {', '.join(suffixes)}")
    return paths


def is_video(path: str) -> bool:
    """Whether a path in a corpus leads to a video file or a folder of frames."""
    return path.lower().endswith((*VIDEOS, FRAMES))


def video_files(folder: Path) -> dict[str, str]:
    """Return the paths of videos below a folder, by stem, by path with `_` for `/`, and by unique trailing number.

    A subfolder of pictures is a video, too; its path ends in `/`. Of several videos with one stem, the one nearest to
    the top is preferred, then the first suffix in `VIDEOS`. `video7.mp4` is also the video `7`, as in MSRVTT-QA.

    Raises:
        InputError: no video.
    """

    def rank(path: str) -> tuple[int, int, str]:
        return path.count(os.sep), suffixes.index(os.path.splitext(path)[1].lower()), path

    suffixes = (*VIDEOS, "")
    found = set[str]()
    for path in files_below(folder):
        parent, name = os.path.split(path)
        if parent and is_picture(name):
            found.add(parent + FRAMES)
        elif os.path.splitext(name)[1].lower() in VIDEOS:
            found.add(path)
    if not found:
        raise InputError(
            f"{folder}: holds no videos; expected files that end in {', '.join(VIDEOS)}, or a folder of frames for each"
        )
    files: dict[str, str] = {}
    for path in sorted(found, key=rank):
        stem = os.path.splitext(path)[0].rstrip(FRAMES)
        files.setdefault(os.path.basename(stem), path)
        files.setdefault(stem.replace(os.sep, "_"), path)
    numbered = defaultdict[str, set[str]](set)
    for stem, path in files.items():
        for number in _NUMBER.findall(stem):
            numbered[number].add(path)
    return {number: path for number, (path, *others) in numbered.items() if not others} | files


@dataclass(frozen=True, kw_only=True)
class VideoReader(Reader):
    """A reader of videos with captions that can skip videos without a file."""

    videos: Path | None = None
    """Folder of the videos: files, or a folder of frames for each; an item without one is left out."""

    def reading(
        self,
        items: Iterable[Item | Skipped],
        *files: Path,
        settings: Mapping[str, Any] | None = None,
        published: Sequence[Published],
    ) -> Reading:
        """Return the items; with `videos`, only items that have a file there.

        A video is `<id>.mp4`, has another suffix of `VIDEOS` or is a folder `<id>` of frames, at any depth in the
        folder, as in MSR-VTT's `TrainValVideo` and `TestVideo`. An id `a_b` may be the file `a/b.mp4`.

        Args:
            items: of the reader.
            files, settings: recorded as the source.
            published: published data sets whose counts are compared.
        """
        source = {"files": identity(*files), **(settings or {})}
        return Reading(
            rows=self._with_files(items), source=source, images=self.videos or "", published=published
        )

    def _with_files(self, items: Iterable[Item | Skipped]) -> Iterator[Item | Skipped]:
        """Yield the items with the paths of their videos; skip those without one.

        Raises:
            InputError: a missing folder, or one without videos.
        """
        files = video_files(existing_folder(self.videos, what="a folder of videos")) if self.videos else {}
        for entry in items:
            if isinstance(entry, Skipped):
                yield entry
            elif self.videos and entry.id not in files:
                yield Skipped(
                    where=f"id {entry.id}", why=f"no such video in {self.videos}", split=entry.split
                )
            else:
                yield replace(entry, path=files.get(entry.id, ""))


def write_picture(path: Path, data: bytes) -> None:
    """Write a picture; the corpus is written last, so an interrupted run writes all pictures again.

    Raises:
        InputError: the file cannot be written.
    """
    make_folder(path.parent)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; make room, and run this again"
        ) from error
