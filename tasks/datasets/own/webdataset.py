"""Shards of WebDataset: tar files in which members of one name, but for what follows its first dot, are a sample."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from infra.errors import InputError
from infra.files import existing, identity, make_folder
from infra.registry import READERS
from infra.store.findings import Flagged, Skipped
from tasks.datasets.own.division import USUAL_SHARES, Drawn
from tasks.datasets.own.rows import Row, grouped
from tasks.datasets.own.written import write_picture
from tasks.datasets.reader import Reader, Reading

PICTURES = ("jpg", "jpeg", "png", "webp")
_TEXTS = ("txt", "caption", "text")
_KEYS = ("caption", "text")  # of a sample's JSON, where it has no text
_LARGEST = 256 << 20  # bytes of one member; a larger one is no picture


@READERS.register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(Reader):
    """Read tar shards of WebDataset: `1.jpg` with `1.txt`, or with a caption in `1.json`; pictures become files."""

    shards: tuple[Path, ...]
    """The tar files, compressed or not."""
    images: Path
    """Folder that the pictures are written to, those of each shard in a folder of its own."""
    split: str = ""
    """The shares of train, val and test, drawn by lot; 80/10/10 where nothing is said."""
    seed: int = 0
    """Of that draw."""

    def read(self) -> Reading:
        """Return the samples, in the order of the shards; their pictures are written while they are read."""
        drawn = Drawn(split=self.split or USUAL_SHARES, seed=self.seed)
        if twice := {
            path.stem for path in self.shards if sum(path.stem == each.stem for each in self.shards) > 1
        }:
            raise InputError(f"several shards are called {', '.join(sorted(twice))}; rename all but one")
        folder = make_folder(self.images)
        return Reading(
            rows=grouped(
                (row for shard in self.shards for row in _rows(shard, folder)),
                splits=drawn,
            ),
            source={"files": identity(*self.shards), **asdict(drawn)},
            images=folder.absolute(),
            notes=(str(drawn),),
        )


def _rows(shard: Path, folder: Path) -> Iterator[Row | Skipped | Flagged]:
    """Yield the samples of a shard, and write their pictures below `folder`.

    Raises:
        InputError: it is no tar file, or cut short.
    """
    seen = set[str]()
    try:
        with tarfile.open(existing(shard, what="a tar file of WebDataset"), mode="r|*") as tar:
            for key, sample in _samples(tar):
                if key in seen:
                    yield Skipped(where=f"{shard.name}, {key}", why="a second sample of its name")
                else:
                    yield _row(key, sample, shard=shard, folder=folder)
                seen.add(key)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{shard}: cannot be read as a tar file: {error}; fetch it again") from error


def _samples(tar: tarfile.TarFile) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Yield each sample's name, and what its members hold by what follows the first dot, in small letters."""
    last, sample = "", dict[str, bytes]()
    for member in tar:
        if not member.isfile():
            continue
        below, name = os.path.split(member.name)
        stem, _, kind = name.partition(".")
        key = os.path.join(below, stem)
        if key != last and sample:
            yield last, sample
            sample = {}
        last = key
        if member.size <= _LARGEST and kind.lower() in (*PICTURES, *_TEXTS, "json"):
            sample[kind.lower()] = _read(tar.extractfile(member))
        else:
            sample.setdefault("", b"")
    if sample:
        yield last, sample


def _read(file: IO[bytes] | None) -> bytes:
    with file:
        return file.read()


def _row(key: str, sample: Mapping[str, bytes], *, shard: Path, folder: Path) -> Row | Skipped:
    where = f"{shard.name}, {key}"
    kind = next((kind for kind in PICTURES if kind in sample), None)
    if kind is None:
        return Skipped(where=where, why=f"a sample without a picture, {', '.join(PICTURES)}")
    path = os.path.join(shard.stem, f"{key}.{kind}")
    if os.path.isabs(key) or os.pardir in Path(key).parts:
        return Skipped(where=where, why="a name that leaves the folder of images")
    try:
        texts = _texts(sample)
    except ValueError:
        return Skipped(where=where, why="a text that is not UTF-8, or no JSON")
    if not texts:
        return Skipped(where=where, why="a sample without a text")
    write_picture(folder / path, sample[kind])
    return Row(where=where, id=path, path=path, texts=texts, answers=(), split="")


def _texts(sample: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the captions of a sample; those in its JSON where there is no text."""
    for kind in _TEXTS:
        if kind in sample:
            return (sample[kind].decode("utf-8-sig"),)
    told = json.loads(sample["json"]) if "json" in sample else {}
    found = next((told[name] for name in _KEYS if name in told), ()) if isinstance(told, dict) else ()
    return tuple(
        text for text in ([found] if isinstance(found, str) else found or ()) if isinstance(text, str)
    )
