"""A run's checkpoints in object storage: whole or not there.

`checkpoint_000000012800_5f3a.json`, the manifest, is written after the files of `checkpoint_000000012800_5f3a/` and
deleted before them. Names have the samples trained on, so that they sort by progress, whatever clocks say.
"""

from __future__ import annotations

import json
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import AbsentError, AwayError, InputError
from infra.fields import from_plain
from infra.files import make_folder, sha256
from infra.storage import cache, remote
from infra.storage.places import Url

if TYPE_CHECKING:
    from infra.checkpoint import Snapshot

_NAME = re.compile(r"(checkpoint_\d+_[0-9a-f]+)(\.json|/.+)")
_FILE = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint is made of.

    Attributes:
        sha256, bytes: of each file, by its name.
    """

    sha256: Mapping[str, str]
    bytes: Mapping[str, int]


def newest(run: Url) -> str | None:
    """Return the name of a run's last whole checkpoint; None where there is none.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    return max((name for name, files in _there(run).items() if f"{name}.json" in files), default=None)


def lacking(run: Url, name: str) -> list[str]:
    """Return the files of a checkpoint that are gone or have another size.

    Raises:
        InputError: it is none, or the storage does not answer or refuses.
    """
    gone = []
    for file, size in _manifest(run, name).bytes.items():
        try:
            if remote.state(run / name / file)[0] != size:
                gone.append(file)
        except AbsentError:
            gone.append(file)
    return gone


@contextmanager
def fetched(run: Url, name: str) -> Iterator[Path]:
    """Give a folder with a checkpoint's files, each held to its check, through the cache.

    Raises:
        InputError: it is damaged or gone, the storage does not answer or refuses, or there is no space left.
    """
    copies = {
        file: cache.whole(run / name / file, sha256=check)
        for file, check in _manifest(run, name).sha256.items()
    }
    with tempfile.TemporaryDirectory(prefix="polypool.") as folder:
        for file, copy in copies.items():
            (Path(folder) / file).symlink_to(copy)
        yield Path(folder)


def write(run: Url, snapshot: Snapshot, *, before: Callable[[], object] = lambda: None) -> str:
    """Write a checkpoint, and delete the others; return its name.

    Where the storage does not answer it is tried for ten minutes.

    Args:
        run: the folder.
        snapshot: what is written.
        before: called before the checkpoint counts, and raises where it is not to.

    Raises:
        InputError: the storage does not answer, or refuses.
        OSError: no space is left on this machine, where it waits.
    """
    name = f"checkpoint_{snapshot.samples:012d}_{secrets.token_hex(4)}"
    waiting = make_folder(cache.folder() / "writing")
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=waiting) as folder:
        snapshot.write(Path(folder))
        files = sorted(Path(folder).iterdir())
        for file in files:
            remote.upload(file, run / name / file.name, attempts=remote.PATIENT)
        manifest = Manifest(
            sha256={file.name: sha256(file) for file in files},
            bytes={file.name: file.stat().st_size for file in files},
        )
        last = Path(folder) / f"{name}.json"
        last.write_text(json.dumps(asdict(manifest)))
        before()
        remote.upload(last, run / last.name, attempts=remote.PATIENT)
    with suppress(AwayError):  # the next one does it
        keep(run, name)
    return name


def keep(run: Url, name: str | None) -> None:
    """Delete all checkpoints but one, and what was begun and never became one; nobody may write meanwhile.

    Raises:
        InputError: the storage does not answer, or refuses.
    """
    for other, files in _there(run).items():
        if other != name:
            for file in sorted(
                files, key=lambda file: not file.endswith(f"{other}.json")
            ):  # the manifest first
                remote.delete(run / file)


def _there(run: Url) -> dict[str, list[str]]:
    """Return the files of each checkpoint, whole or not, as paths from the run's folder."""
    found: dict[str, list[str]] = {}
    for path in remote.listed(run):
        if match := _NAME.fullmatch(path):
            found.setdefault(match[1], []).append(path)
    return found


def _manifest(run: Url, name: str) -> Manifest:
    where = run / f"{name}.json"
    read = from_plain(
        Manifest, remote.read_json(where, what="what a checkpoint is made of"), where=str(where)
    )
    if read.sha256.keys() != read.bytes.keys() or not all(map(_FILE.fullmatch, read.bytes)):
        raise InputError(f"{where}: is no manifest of a checkpoint, as its files have other names")
    return read
