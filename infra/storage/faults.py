"""What a disk that is full, or may not be written, makes of an error: words for a person."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from infra.files import FULL

_SHUT = {errno.EACCES, errno.EPERM}
_RUST = re.compile(r"\(os error (\d+)\)")
_TORCH = "inline_container.cc"
"""Where torch notices of any disk that it took less than it was given."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, also across the processes of Ray."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = (getattr(error, name, None) for name in ("_base_exc", "controller_failure", "cause"))
        error = next((each for each in inner if isinstance(each, BaseException)), None) or error.__cause__


def disk_fault(error: BaseException, folder: Path) -> str | None:
    """Return what is wrong with the disk and what to do about it, where an error or its causes come from that.

    Args:
        error: what was raised.
        folder: that was written to, beside the folder of temporary files.
    """
    for each in causes(error):
        number, where = _number(each), getattr(each, "filename", None) or folder
        if number in FULL:
            places = dict.fromkeys((str(folder), tempfile.gettempdir()))
            free = " and ".join(f"{place} has {_free(place):,} bytes free" for place in places)
            return f"no space left ({free}; or a quota or a limit on the size of files is reached); make room"
        # what may not be read is another matter
        if number == errno.EROFS or (number in _SHUT and str(folder) in str(each)):
            return f"{where}: cannot be written: {os.strerror(number)}; make it writable"
    return None


def _number(error: BaseException) -> int | None:
    """Return the system's number of an error, also where a library has it in words only."""
    if isinstance(error, OSError):
        return error.errno
    if found := _RUST.search(str(error)):
        return int(found[1])
    return errno.ENOSPC if _TORCH in str(error) else None


def _free(place: str) -> int:
    """Return the free bytes of a folder, or of the nearest one above that is there."""
    path = Path(place).absolute()
    return shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
