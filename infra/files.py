"""Atomic file writes, and clear messages for files that cannot be read or written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from polypool.infra.errors import AbsentError, InputError
from polypool.infra.storage import local

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_FILE = "no such file"
_TORCH_WRITER = "inline_container.cc"
"""Part of torch's message for a short write, for any reason."""


def existing(path: str | Path, *, what: str) -> Path:
    """Return `path` if it is a readable file; `what` names the expected content in the message."""
    path = local(path, what=what)
    if not os.path.isfile(path):  # also False for a name that the system rejects
        if os.path.lexists(path) and (why := why_no_file(path)) != _NO_FILE:
            raise InputError(f"{path}: is {why}; expected {what}")
        raise AbsentError(f"{path}: {_NO_FILE}; expected {what}")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: may not be read; give yourself read permission")
    return path


def why_no_file(path: str | Path) -> str | None:
    """Return why a path is not a readable, non-empty file, without the path; None if it is.

    Pipes, devices and sockets are not opened, because that may block for ever.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a NUL is a ValueError
        return _NO_FILE
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "a folder" if stat.S_ISDIR(status.st_mode) else "no file but a pipe, a device or a socket"
    if not status.st_size:
        return "an empty file"
    return None if os.access(path, os.R_OK) else "may not be read"


def existing_folder(path: str | Path, *, what: str) -> Path:
    """Return `path` if it is a folder; `what` names the expected content in the message."""
    path = local(path, what=what)
    if not os.path.isdir(path):
        if os.path.isfile(path):
            raise InputError(f"{path}: is a file; expected {what}")
        raise AbsentError(f"{path}: no such folder; expected {what}")
    return path


def make_folder(path: str | Path) -> Path:
    """Create a folder and its parents unless they exist."""
    path = local(path, what="a folder to make")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot make this folder: {getattr(error, 'strerror', error)}") from error
    return path


@contextmanager
def atomic(path: Path, *, needs: int = 0) -> Iterator[BinaryIO]:
    """Open a file for writing; it is synced and renamed to `path` if the block ends without error.

    Args:
        path: the final name; bytes are first written to a hidden file in the same folder.
        needs: number of bytes about to be written, for the message if they do not fit.

    Raises:
        InputError: the file cannot be opened, or the disk is full.
    """
    path = local(path, what="a file to write")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        opened = part.open("xb")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    with opened as file:
        try:
            yield file
            needs = max(needs, file.tell())
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException as error:
            part.unlink(missing_ok=True)
            with suppress(OSError):
                file.close()
            if isinstance(error, OSError) and error.errno in FULL:
                raise _no_space(path, needs) from error
            raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _no_space(path: Path, needs: int) -> InputError:
    size = f"{needs:,} bytes" if needs else "more bytes"
    return InputError(
        f"{path}: no space left: {size} are needed for this file and {free_bytes(path.parent):,} are free (or a quota "
        "or limit on the size of files is reached); make room and run the command again"
    )


def read_json(path: str | Path, *, what: str, entry: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Read a UTF-8 JSON file; see `parse_json`.

    Raises:
        InputError: a missing or unreadable file, invalid JSON, or a duplicate key.
    """
    path = existing(path, what=what)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; expected {what}") from error
    return parse_json(data, where=path, what=what, entry=entry)


def parse_json(
    data: bytes, *, where: object, what: str, entry: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Parse JSON in UTF-8.

    Args:
        data: the bytes.
        where: the file, for messages.
        what: expected content, for messages.
        entry: maps each object while parsing (`object_hook`).

    Raises:
        InputError: invalid JSON (the message gives the line of a syntax error), or a duplicate key.
    """

    def made(pairs: list[tuple[str, Any]]) -> Any:
        held = dict(pairs)
        if len(held) < len(pairs):  # Python would keep the last value of a duplicate key
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise ValueError(f"the key {twice!r:.60} is twice in an object")
        return entry(held) if entry else held

    try:
        return json.loads(data, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not valid JSON at line {error.lineno}, character {error.pos:,}: {error.msg}; "
            f"expected {what}. The file may be cut short: fetch or write it again"
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # invalid UTF-8, a duplicate key, too many digits or too deep nesting
        raise InputError(f"{where}: not valid JSON: {error}; expected {what}") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented, in ASCII."""
    data = (json.dumps(value, indent=1) + "\n").encode()
    with atomic(path, needs=len(data)) as file:
        file.write(data)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_like(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match a pattern, sorted by name.

    Raises:
        InputError: the folder does not exist.
    """
    return sorted(existing_folder(folder, what=f"a folder of {pattern}").glob(pattern))


def identity(*paths: Path) -> list[dict[str, Any]]:
    """Return name and size of input files: an interrupted job resumes only with equal ones."""
    return [
        {"file": path.name, "bytes": existing(path, what="an input of this command").stat().st_size}
        for path in paths
    ]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, including those raised in Ray's processes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = (getattr(error, name, None) for name in ("_base_exc", "controller_failure", "cause"))
        error = next((each for each in inner if isinstance(each, BaseException)), None) or error.__cause__


def disk_fault(error: BaseException, folder: Path) -> str | None:
    """Return the message for an error caused by a full disk or a folder without write access; None for other errors.

    Args:
        error: the exception.
        folder: output folder; if a disk is full, the message also gives the free space of the temporary folder.
    """
    for each in causes(error):
        number = _errno(each)
        if number in FULL:
            places = dict.fromkeys((str(folder), tempfile.gettempdir()))
            free = " and ".join(f"{place} has {free_bytes(Path(place)):,} bytes free" for place in places)
            return f"no space left ({free}; or a quota or a limit on the size of files is reached); make room"
        # a file without read permission is a different error
        if number == errno.EROFS or (number in _FORBIDDEN and str(folder) in str(each)):
            where = getattr(each, "filename", None) or folder
            return f"{where}: cannot be written: {os.strerror(number)}; make it writable"
    return None


def _errno(error: BaseException) -> int | None:
    """Return the error number of the system, parsed from the message of libraries that give it nowhere else."""
    if isinstance(error, OSError):
        return error.errno
    if found := _RUST_ERROR.search(str(error)):
        return int(found[1])
    return errno.ENOSPC if _TORCH_WRITER in str(error) else None


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder, or of its nearest existing parent."""
    folder = folder.absolute()
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
