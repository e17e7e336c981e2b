"""Pictures of archives, written to files."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.files import make_folder


def write_picture(path: Path, data: bytes) -> None:
    """Write a picture; one that a kill cuts short is written again with the corpus, which comes last.

    Raises:
        InputError: it cannot be written.
    """
    make_folder(path.parent)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; make room, and run this again"
        ) from error
