"""Untrusted `.npy` files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import existing

PICKLED = "pickled objects; pickles are not read, as they can run code"
_DAMAGED = "damaged or cut short"
_HIGHEST = 0x10FFFF  # of Unicode


def map_array(path: str | Path, *, what: str) -> np.ndarray:
    """Memory-map the array of a `.npy` file; nothing is unpickled.

    Args:
        path: the file.
        what: its expected content, for messages.

    Raises:
        InputError: there is no such file, it is damaged or shorter than its header says, or it holds pickled objects or
            text that is no Unicode.
    """
    path = existing(path, what=what)
    try:
        x = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of numpy's parser of Python literals
        why = reason(path, error)
        raise InputError(
            f"{path}: cannot be read as {what}: {why}; fetch it again, or write it anew"
        ) from error
    if not isinstance(x, np.ndarray):
        raise InputError(f"{path}: an archive of several arrays; expected {what}")
    if x.dtype.kind == "V" or not x.dtype.itemsize:  # an empty file has any number of elements without bytes
        raise InputError(f"{path}: cannot be read as {what}: an array of {x.dtype}, expected numbers or text")
    if x.dtype.kind == "U" and x.size:
        letters = np.ascontiguousarray(x).view(np.dtype("u4").newbyteorder(x.dtype.byteorder))
        if (letters > _HIGHEST).any():
            raise InputError(f"{path}: cannot be read as {what}: its text is no Unicode; fetch it again")
    return x


def reason(path: Path, error: Exception) -> str:
    """Return why numpy could not load a file, for a message."""
    with path.open("rb") as file:
        pickle = file.read(1) == b"\x80"
    objects = isinstance(error, ValueError) and (
        "Python objects" in str(error) or "Object arrays" in str(error)
    )
    return PICKLED if pickle or objects else _DAMAGED
