"""Shards of WebDataset: tar files in which members of one name, up to its first dot, are a sample."""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity, make_folder
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.readers.folders import write_picture
from polypool.tasks.datasets.readers.rows import DividedReader, Row, grouped

PICTURES = ("jpg", "jpeg", "png", "webp")
_TEXTS = ("txt", "caption", "text")
_KEYS = ("caption", "text")  # of a sample's JSON, where it has no text
_LARGEST = 256 << 20  # bytes of one member; a larger one is no picture
_LARGEST_HEADER = 1 << 20  # bytes of a header with long names, which tarfile reads whole
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


@READERS.register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(DividedReader):
    """Read tar shards of WebDataset: `1.jpg` with `1.txt`, or with a caption in `1.json`; pictures become files."""

    shards: tuple[Path, ...]
    """The tar files, compressed or not."""
    images: Path
    """Folder that the pictures are written to, those of each shard in a folder of its own."""

    def read(self) -> Reading:
        """Return the samples, in the order of the shards; their pictures are written while they are read."""
        random, stems = self.random, Counter(path.stem for path in self.shards)
        if twice := [stem for stem, count in stems.items() if count > 1]:
            raise InputError(f"several shards are called {', '.join(sorted(twice))}; rename all but one")
        folder = make_folder(self.images)
        return Reading(
            rows=grouped((row for shard in self.shards for row in _rows(shard, folder)), splits=random),
            source={"files": identity(*self.shards), **asdict(random)},
            images=folder.absolute(),
            notes=(str(random),),
        )


class _Member(tarfile.TarInfo):
    """A member whose headers are of a bounded size: a few kB of compressed ones could fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> tarfile.TarInfo:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _LONG_HEADERS and member.size > _LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes, of which no tar file has so many")
        return member


def _rows(shard: Path, folder: Path) -> Iterator[Row | Skipped]:
    """Yield the samples of a shard, and write their pictures below `folder`.

    Raises:
        InputError: it is no tar file, or cut short.
    """
    seen = set[str]()
    try:
        with tarfile.open(
            existing(shard, what="a tar file of WebDataset"), mode="r|*", tarinfo=_Member
        ) as tar:
            files = (member for member in tar if member.isfile())
            for key, members in groupby(files, key=_key):
                sample = _sample(tar, members)
                if key in seen:
                    yield Skipped(where=f"{shard.name}, {key}", why="a second sample of its name")
                else:
                    yield _row(key, sample, shard=shard, folder=folder)
                seen.add(key)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{shard}: cannot be read as a tar file: {error}; fetch it again") from error


def _key(member: tarfile.TarInfo) -> str:
    """Return the path of a member up to the first dot of its name."""
    below, name = os.path.split(member.name)
    return os.path.join(below, name.partition(".")[0])


def _sample(tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo]) -> dict[str, bytes]:
    """Return what members hold by what follows the first dot of their names, in small letters."""
    sample = {}
    for member in members:
        kind = os.path.basename(member.name).partition(".")[2].lower()
        wanted = member.size <= _LARGEST and kind in (*PICTURES, *_TEXTS, "json")
        if wanted and (file := tar.extractfile(member)):
            sample[kind] = file.read()
    return sample


def _row(key: str, sample: Mapping[str, bytes], *, shard: Path, folder: Path) -> Row | Skipped:
    kind, why = next((kind for kind in PICTURES if kind in sample), ""), ""
    path, texts = os.path.join(shard.stem, f"{key}.{kind}"), ()
    try:
        texts = _texts(sample)
    except (ValueError, RecursionError):
        why = "a text that is not UTF-8, or no JSON"
    if not kind:
        why = f"a sample without a picture, {', '.join(PICTURES)}"
    elif os.path.isabs(key) or os.pardir in Path(key).parts:
        why = "a name that leaves the folder of images"
    elif not (texts or why):
        why = "a sample without a text"
    if why:
        return Skipped(where=f"{shard.name}, {key}", why=why)
    write_picture(folder / path, sample[kind])
    return Row(where=f"{shard.name}, {key}", id=path, path=path, texts=texts)


def _texts(sample: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the captions of a sample; those in its JSON where there is no text."""
    for kind in _TEXTS:
        if kind in sample:
            return (sample[kind].decode("utf-8-sig"),)
    held = json.loads(sample.get("json", b"{}"))
    found = next((held[name] for name in _KEYS if name in held), None) if isinstance(held, dict) else None
    return tuple(text for text in (found if isinstance(found, list) else [found]) if isinstance(text, str))
