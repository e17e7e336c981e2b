"""Shards of WebDataset: tar files in which members of one name, up to its first dot, are a sample."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from polypool.infra.errors import InputError
from polypool.infra.files import existing, identity, make_folder, parse_json
from polypool.infra.limits import (
    LARGEST_BLOCK,
    LARGEST_HEADER,
    LARGEST_TEXT,
    UNPACKS_TOO_FAR,
    unpacks_too_far,
)
from polypool.infra.registry import READERS
from polypool.infra.store.findings import Skipped
from polypool.infra.store.ids import IdSet
from polypool.tasks.datasets import Reading
from polypool.tasks.datasets.own.rows import DividedReader, Row, grouped, strings
from polypool.tasks.datasets.readers.folders import write_picture

PICTURES = ("jpg", "jpeg", "png", "webp")
_TEXTS = ("txt", "caption", "text")
_KEYS = ("caption", "text")  # of a sample's JSON, where it has no text
_LARGEST = dict.fromkeys(PICTURES, LARGEST_BLOCK) | dict.fromkeys((*_TEXTS, "json"), LARGEST_TEXT)
"""Bytes of a member by its kind."""
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
        if member.type in _LONG_HEADERS and member.size > LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes, of which no tar file has so many")
        return member


def _rows(shard: Path, folder: Path) -> Iterator[Row | Skipped]:
    """Yield the samples of a shard, and write their pictures below `folder`.

    Raises:
        InputError: it is no tar file, or cut short.
    """
    seen, packed = IdSet(), existing(shard, what="a tar file of WebDataset").stat().st_size
    try:
        with tarfile.open(shard, mode="r|*", tarinfo=_Member) as tar:
            files = (member for member in _bounded(tar, packed=packed) if member.isfile())
            for key, members in groupby(files, key=_key):
                sample = _sample(tar, members)
                if seen.add(key):
                    yield from _row(key, sample, shard=shard, folder=folder)
                else:
                    yield Skipped(where=f"{shard.name}, {key}", why="a second sample of its name")
    except InputError:
        raise
    except (
        tarfile.TarError,
        EOFError,
        OSError,
        TypeError,
        ValueError,
    ) as error:  # the last two of damaged headers
        raise InputError(f"{shard}: cannot be read as a tar file: {error}; fetch it again") from error


def _bounded(tar: tarfile.TarFile, *, packed: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a shard of `packed` bytes, each before it is unpacked; the tar file keeps none of them."""
    for member in tar:
        if unpacks_too_far(member.offset_data + member.size, packed=packed):
            raise tarfile.ReadError(f"it {UNPACKS_TOO_FAR}")
        yield member
        tar.members.clear()  # ty: ignore[missing-attribute]  (unknown to the types of the standard library)


def _key(member: tarfile.TarInfo) -> str:
    """Return the path of a member up to the first dot of its name."""
    below, name = os.path.split(member.name)
    return os.path.join(below, name.partition(".")[0])


def _sample(tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo]) -> dict[str, bytes]:
    """Return what members hold by what follows the first dot of their names, in small letters."""
    sample = {}
    for member in members:
        kind = os.path.basename(member.name).partition(".")[2].lower()
        if member.size <= _LARGEST.get(kind, -1) and (file := tar.extractfile(member)):
            sample[kind] = file.read()
    return sample


def _row(key: str, sample: Mapping[str, bytes], *, shard: Path, folder: Path) -> Iterator[Row | Skipped]:
    kind, why = next((kind for kind in PICTURES if kind in sample), ""), ""
    where, path, texts = f"{shard.name}, {key}", os.path.join(shard.stem, f"{key}.{kind}"), ()
    try:
        held = _texts(sample)
    except InputError:
        why = "a text that is not UTF-8, or no JSON"
    else:
        texts = () if held is None else (yield from strings(held, what="a text", where=where))
    if not kind:
        why = f"a sample without a picture, {', '.join(PICTURES)}"
    elif os.path.isabs(key) or os.pardir in Path(key).parts:
        why = "a name that leaves the folder of images"
    elif not (texts or why):
        why = "a sample without a text"
    if why:
        yield Skipped(where=where, why=why)
        return
    write_picture(folder / path, sample[kind])
    yield Row(where=where, id=path, path=path, texts=texts)


def _texts(sample: Mapping[str, bytes]) -> Any:
    """Return the text of a sample; what its JSON has where there is none.

    Raises:
        InputError: it is not UTF-8, or no JSON.
    """
    for kind in _TEXTS:
        if kind in sample:
            try:
                return sample[kind].decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(str(error)) from error
    held = parse_json(sample.get("json", b"{}"), where="", what="a caption")
    return next((held[name] for name in _KEYS if name in held), None) if isinstance(held, dict) else None
