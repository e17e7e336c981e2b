"""SHA-256 digests of files, recorded when they are written or ingested and verified before use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.fields import read_record
from polypool.infra.files import sha256, why_no_file, write_json
from polypool.infra.process.progress import Progress

DIGESTS = "digests.json"
"""File of digests by name. A folder without it is used unverified."""
_PICTURES = 1 << 16  # files per digest cache, 15 MB
_THREADS = 4  # threads, to hide network latency
_TOGETHER = 32  # files per task of a thread


def write_digests(folder: Path, names: Sequence[str]) -> None:
    """Record the digests of some files of a folder."""
    write_json(folder / DIGESTS, {name: sha256(folder / name) for name in names})


def damaged(folder: Path) -> list[str]:
    """Return the files of a folder that are missing or whose digest differs.

    Raises:
        InputError: the file of digests is damaged.
    """
    if not (folder / DIGESTS).exists():
        return []
    digests = read_record(dict[str, str], folder / DIGESTS, what="the digests of a folder's files")
    return [
        name
        for name, digest in digests.items()
        if not (folder / name).is_file() or sha256(folder / name) != digest
    ]


def refuse_damaged(folder: Path, *, then: str) -> None:
    """Verify a folder's files against their digests.

    Args:
        folder: the files and their digests.
        then: advice for the message.

    Raises:
        InputError: names the missing or damaged files.
    """
    if changed := damaged(folder):
        are = "is" if len(changed) == 1 else "are"
        raise InputError(
            f"{folder}: {', '.join(changed)} {are} damaged: missing, or with another SHA-256 than was recorded when "
            f"they were written; {then}"
        )


def digest_of(path: str | Path) -> str:
    """Return the digest of a file, or of the files in a folder of frames; empty if it cannot be read."""
    try:
        if os.path.isdir(path):
            names = sorted(
                entry.name for entry in os.scandir(path) if entry.is_file() and entry.name[0] != "."
            )
            lines = (f"{sha256(Path(path, name))} {name}\n" for name in names)
            return hashlib.sha256(b"".join(map(os.fsencode, lines))).hexdigest()
        return "" if why_no_file(path) else sha256(Path(path))
    except OSError:
        return ""


def why_changed(path: str | Path, digest: str) -> str | None:
    """Return a message if a file differs from its recorded digest.

    None if it is unchanged, if no digest was recorded, or if it cannot be read, which decoding reports.
    """
    if not digest or digest_of(path) in ("", digest):
        return None
    return "changed since it was ingested: its SHA-256 differs"


class FileDigests(AbstractContextManager["FileDigests"]):
    """Computes SHA-256 digests of pictures and videos in a folder, in several threads, with progress."""

    def __init__(self, folder: str | Path) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(_THREADS)
        self._digest_of = lru_cache(_PICTURES)(digest_of)  # many questions share a picture
        self._bar = Progress(desc="pictures", unit="file", delay=1)

    def of(self, paths: Sequence[str]) -> list[str]:
        """Return the digests of some files; empty for files that cannot be read."""
        files, found = [*dict.fromkeys(filter(None, paths))], {"": ""}
        parts = [files[at : at + _TOGETHER] for at in range(0, len(files), _TOGETHER)]
        for part, digests in zip(parts, self._pool.map(self._of_part, parts), strict=True):
            found.update(zip(part, digests, strict=True))
            self._bar.update(len(part))
        return [found[path] for path in paths]

    def _of_part(self, paths: Sequence[str]) -> list[str]:
        return [self._digest_of(os.path.join(self._folder, path)) for path in paths]

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._bar.close()
