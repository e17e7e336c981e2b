"""Which videos of a corpus are there: as files, or as features."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import existing_folder, walk
from infra.store import FeatureStore
from infra.store.findings import Skipped
from tasks.datasets.corpus import Item
from tasks.datasets.published import Published
from tasks.datasets.reader import Reader, Reading

SUFFIXES = (".mp4", ".avi", ".webm", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp", ".gif")


@dataclass(frozen=True, kw_only=True)
class VideoReader(Reader):
    """A reader of videos with captions, which leaves out those of which nothing is there, where it is told to look."""

    videos: Path | None = None
    """Folder of the video files; an item without one is left out."""
    features: Path | None = None
    """Folder of a store; an item without features in it is left out."""

    def reading(
        self, items: Iterable[Item | Skipped], *, source: Mapping[str, Any], published: Sequence[Published]
    ) -> Reading:
        """Return the items that have what was asked for."""
        if self.videos:
            items = with_videos(items, folder=self.videos)
        if self.features:
            items = with_features(items, store=self.features)
        return Reading(rows=items, source=source, images=self.videos or "", published=published)


def with_videos(items: Iterable[Item | Skipped], *, folder: str | Path) -> Iterator[Item | Skipped]:
    """Give each item the path of its video below `folder`; one that has none is skipped.

    The file is called `<id>.mp4`, or ends in another of `SUFFIXES`, and lies in the folder or in a folder within, as
    in MSR-VTT's `TrainValVideo` and `TestVideo`. An id `a_b` may be the file `a/b.mp4`. Of several, one nearer to the
    top is taken, then `.mp4`.

    Raises:
        InputError: there is no such folder, or no video in it.
    """
    files = _videos(existing_folder(folder, what="a folder of videos"))
    if not files:
        raise InputError(f"{folder}: holds no videos; expected files that end in {', '.join(SUFFIXES)}")
    for entry in items:
        if isinstance(entry, Skipped):
            yield entry
        elif entry.id in files:
            yield replace(entry, path=files[entry.id])
        else:
            yield Skipped(where=f"id {entry.id}", why=f"no such video in {folder}", split=entry.split)


def with_features(items: Iterable[Item | Skipped], *, store: str | Path) -> Iterator[Item | Skipped]:
    """Pass on the items that have features in a store; the others are skipped.

    Raises:
        InputError: there is no such store.
    """
    known = set(FeatureStore.open(store).ids.to_pylist())
    for entry in items:
        if isinstance(entry, Skipped) or entry.id in known:
            yield entry
        else:
            yield Skipped(where=f"id {entry.id}", why=f"no features in {store}", split=entry.split)


def _videos(folder: Path) -> dict[str, str]:
    """Return the videos' paths below `folder` by stem, and by their path in which `/` is `_`."""
    candidates: list[tuple[int, int, str]] = []
    for below, names in walk(folder):
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if suffix in SUFFIXES:
                path = os.path.normpath(os.path.join(below, name))
                candidates.append((path.count(os.sep), SUFFIXES.index(suffix), path))
    files: dict[str, str] = {}
    for *_, path in sorted(candidates):
        stem = os.path.splitext(path)[0]
        files.setdefault(os.path.basename(stem), path)
        files.setdefault(stem.replace(os.sep, "_"), path)
    return files
