"""SHA-256 digests of files, taken when they are written or ingested, and compared before they are used."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.fields import read_record
from polypool.infra.files import atomic, sha256, why_no_file
from polypool.infra.process.progress import Progress

DIGESTS = "digests.json"
"""The file of digests by name. A folder without one is used as it is."""
_PICTURES = 1 << 16  # whose digests are kept, 15 MB
_THREADS = 4  # which hide the delays of a network
_TOGETHER = 32  # files that a thread reads on end


def write_digests(folder: Path, names: Sequence[str]) -> None:
    """Write the digests of some files of a folder."""
    digests = {name: sha256(folder / name) for name in names}
    with atomic(folder / DIGESTS) as file:
        file.write(json.dumps(digests, indent=1).encode())


def damaged(folder: Path) -> list[str]:
    """Return the files of a folder that are missing or not as they were written.

    Raises:
        InputError: the digests themselves are damaged.
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
    """Refuse a folder with a damaged file.

    Args:
        folder: the files and their digests.
        then: what to do, for the message.

    Raises:
        InputError: names the files.
    """
    if changed := damaged(folder):
        are = "is" if len(changed) == 1 else "are"
        raise InputError(
            f"{folder}: {', '.join(changed)} {are} damaged: missing, or with another SHA-256 than was recorded when "
            f"they were written; {then}"
        )


def digest_of(path: str | Path) -> str:
    """Return the digest of a file; empty where there is none that can be read."""
    try:
        return "" if why_no_file(path) else sha256(Path(path))
    except OSError:
        return ""


def why_changed(path: str | Path, digest: str) -> str | None:
    """Return why a file is another one than was ingested.

    None where it is not, where its digest was not taken, or where it cannot be read, which decoding it says.
    """
    if not digest or digest_of(path) in ("", digest):
        return None
    return "changed since it was ingested: its SHA-256 differs"


class FileDigests(AbstractContextManager["FileDigests"]):
    """Takes the SHA-256 of pictures and videos below a folder, several at a time, and shows how many are done."""

    def __init__(self, folder: str | Path) -> None:
        self._folder, self._pool = folder, ThreadPoolExecutor(_THREADS)
        self._digest_of = lru_cache(_PICTURES)(digest_of)  # many questions are about one picture
        self._bar = Progress(desc="pictures", unit="file", delay=1)

    def of(self, paths: Sequence[str]) -> list[str]:
        """Return the digests of some files; empty where there is none that can be read."""
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
