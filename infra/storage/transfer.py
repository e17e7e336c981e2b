"""Files read and folders written in the same way on this machine and in object storage."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from polypool.infra import files
from polypool.infra.errors import AbsentError, InputError
from polypool.infra.files import make_folder, parse_json
from polypool.infra.storage import cache, remote
from polypool.infra.storage.places import Url, place


def is_file(path: Path | Url) -> bool:
    """Whether there is a file of this name."""
    return remote.exists(path) if isinstance(path, Url) else path.is_file()


def read_json(path: Path | Url, *, what: str) -> Any:
    """Read a UTF-8 JSON file.

    Raises:
        AbsentError: there is no such file in object storage.
        InputError: it is missing, is not JSON, or the storage does not answer or refuses.
    """
    if not isinstance(path, Url):
        return files.read_json(path, what=what)
    try:
        return parse_json(remote.RemoteFile(path).read(), where=path, what=what)
    except AbsentError as error:
        raise AbsentError(f"{path}: no such file; expected {what}") from error


def write_json(path: Path | Url, value: Any) -> None:
    """Write JSON, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    if isinstance(path, Url):
        remote.upload((json.dumps(value, indent=1) + "\n").encode(), path)
    else:
        files.write_json(path, value)


def local_copy(path: Path | Url, *, sha256: str = "") -> Path:
    """Return a file of this machine: the file itself, or its copy in the cache (`cache.whole`)."""
    return cache.whole(path, sha256=sha256) if isinstance(path, Url) else path


class Destination:
    """A folder to write. Files for object storage are written to the cache's folder, and wait there until all are sent.

    Attributes:
        folder: files are written here, on this machine; it is made where necessary.
        name: what the user called it.

    Raises:
        InputError: it is no path or URL, or cannot be made.
    """

    def __init__(self, folder: str | Path | Url) -> None:
        to = place(folder)
        self.name, self._url, self._marker = str(to), to if isinstance(to, Url) else None, ""
        if isinstance(to, Url):
            key = hashlib.sha256(self.name.encode()).hexdigest()[:16]
            to = cache.folder() / "writing" / f"{to.name}-{key}"
        self.folder = make_folder(to)

    def begin(self, *, marker: str, last: str) -> None:
        """Refuse a folder in object storage that is complete, or whose unfinished files are on another machine.

        Args:
            marker: a file that exists while the folder is unfinished.
            last: the file that is written last.

        Raises:
            InputError: it is one of these, or the storage does not answer or refuses.
        """
        if (url := self._url) is None:
            return
        self._marker = marker
        complete, mine = remote.exists(url / last), (self.folder / marker).exists()
        elsewhere = not mine and remote.exists(url / marker)
        if complete or elsewhere:
            shutil.rmtree(self.folder)
        if complete:
            raise InputError(f"{url}: is complete; delete it to write it anew, or choose another name")
        if elsewhere:
            raise InputError(
                f"{url}: was begun by another machine, or with another POLYPOOL_CACHE, which has what is not "
                f"there yet: go on there, or delete {url / marker} to write it anew"
            )

    def send(self, *names: str) -> None:
        """Upload files that are finished, except those that are there as they are here."""
        if self._url is None:
            return
        for name in names:
            path, url, note = self.folder / name, self._url / name, make_folder(self.folder / ".sent") / name
            sent = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
            if not (note.exists() and note.read_text() == sent and remote.exists(url)):
                remote.upload(path, url)
                note.write_text(sent)

    def finish(self, last: Callable[[Path], None], names: Iterable[str] = ()) -> None:
        """Write the files that make the folder complete; what was sent is then removed from this machine.

        Args:
            last: writes them into the folder that it is given.
            names: of files that must be there before, those of them that exist.

        Raises:
            InputError: the storage does not answer or refuses; the same command resumes from there.
        """
        if self._url is None:
            return last(self.folder)
        aside = make_folder(self.folder / "last")
        last(aside)
        self.send(*(name for name in names if (self.folder / name).exists()))
        for path in sorted(aside.iterdir()):
            remote.upload(path, self._url / path.name)
        if self._marker:
            remote.delete(self._url / self._marker)
        shutil.rmtree(self.folder)
