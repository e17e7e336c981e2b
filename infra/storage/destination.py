"""Where a folder of files is written: on this machine, or, file by file as each is finished, to object storage."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from infra import files
from infra.errors import InputError
from infra.files import make_folder
from infra.storage import cache, remote
from infra.storage.places import Url, place


class Destination:
    """A folder on this machine, made where it does not exist.

    Attributes:
        folder: that files are written to.
        name: what a user calls it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = make_folder(folder), str(folder)

    def begin(self, *, marker: str, last: str) -> None:
        """Refuse a folder that cannot be begun, or gone on with.

        Args:
            marker: a file that is there while the folder is unfinished.
            last: the file that is written last.
        """

    def send(self, *names: str) -> None:
        """Take files that are finished."""

    def finish(self, last: Callable[[Path], None], names: Iterable[str] = ()) -> None:
        """Write what makes a folder whole.

        Args:
            last: writes a file, or several, to the folder that it is given.
            names: of files that have to be there before; those that there are not are passed over.
        """
        last(self.folder)


class RemoteDestination(Destination):
    """A folder in object storage. What is written waits in the cache's folder until all of it is there.

    Args:
        url: of the folder.
    """

    def __init__(self, url: Url) -> None:
        key = hashlib.sha256(str(url).encode()).hexdigest()[:16]
        super().__init__(cache.folder() / "writing" / f"{url.name}-{key}")
        self.name, self.url, self._marker = str(url), url, ""

    def begin(self, *, marker: str, last: str) -> None:
        """Refuse a folder that is complete there, or was begun by a machine that has what is not there yet.

        Raises:
            InputError: it is one of these, or the storage does not answer or refuses.
        """
        self._marker = marker
        complete, mine = remote.exists(self.url / last), (self.folder / marker).exists()
        elsewhere = not mine and remote.exists(self.url / marker)
        if complete or elsewhere:  # nothing here is of use
            shutil.rmtree(self.folder)
        if complete:
            raise InputError(f"{self.url}: is complete; delete it to write it anew, or choose another name")
        if elsewhere:
            raise InputError(
                f"{self.url}: was begun by another machine, or with another POLYPOOL_CACHE, which has what is not "
                f"there yet: go on there, or delete {self.url / marker} to write it anew"
            )

    def send(self, *names: str) -> None:
        """Send files that are finished, unless they were sent as they are and are still there."""
        for name in names:
            path, url, note = self.folder / name, self.url / name, make_folder(self.folder / ".sent") / name
            sent = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
            if not (note.exists() and note.read_text() == sent and remote.exists(url)):
                remote.upload(path, url)
                note.write_text(sent)

    def finish(self, last: Callable[[Path], None], names: Iterable[str] = ()) -> None:
        """Send what is left, and after it what makes the folder whole; nothing of it stays here.

        Raises:
            InputError: the storage does not answer or refuses; the same command goes on from there.
        """
        aside = make_folder(self.folder / "last")
        last(aside)
        self.send(*(name for name in names if (self.folder / name).exists()))
        for path in sorted(aside.iterdir()):
            remote.upload(path, self.url / path.name)
        if self._marker:
            remote.delete(self.url / self._marker)
        shutil.rmtree(self.folder)


def write_json(path: Path | Url, value: Any) -> None:
    """Write JSON, as `infra.files.write_json` does, or to object storage.

    Raises:
        InputError: it cannot be written.
    """
    if not isinstance(path, Url):
        return files.write_json(path, value)
    with tempfile.TemporaryDirectory(prefix="polypool.") as folder:
        files.write_json(Path(folder) / path.name, value)
        remote.upload(Path(folder) / path.name, path)


def destination(folder: str | Path | Url) -> Destination:
    """Return where a folder of files is written that a user names by its path or its URL.

    Raises:
        InputError: it is neither, or cannot be made.
    """
    found = place(folder)
    return RemoteDestination(found) if isinstance(found, Url) else Destination(found)
