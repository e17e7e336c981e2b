"""Safe readers of arrays from untrusted files: `.npy`, and pickles of plain values and numpy arrays.

A pickle can call any function and set any object's state. Here the few names that arrays of numbers need are
functions of this file, and states are checked before they are set; everything else is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from pathlib import Path
from typing import Any, ClassVar

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


_NUMBERS = re.compile(r"[<>|=]?([fiu][1248]|b1)")
_ARRAY = "the class of arrays"  # an argument of `_reconstruct`


def _dtype(name: Any, *_: Any) -> np.dtype:
    if not isinstance(name, str) or not _NUMBERS.fullmatch(name):
        raise InputError(f"it holds an array of {name!r}, expected one of numbers")
    return np.dtype(name)


def _reconstruct(*_: Any) -> np.ndarray:
    return np.empty(0, np.float32)


def _frombuffer(data: Any, dtype: np.dtype, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(bytes(data), dtype).reshape(shape, order=order)


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype)[0]


_KNOWN = {("numpy", "ndarray"): _ARRAY, ("numpy", "dtype"): _dtype}
for _core in ("core", "_core"):  # before numpy 2, and since
    _KNOWN[f"numpy.{_core}.multiarray", "_reconstruct"] = _reconstruct
    _KNOWN[f"numpy.{_core}.multiarray", "scalar"] = _scalar
    _KNOWN[f"numpy.{_core}.numeric", "_frombuffer"] = _frombuffer


class _Unpickler(pickle._Unpickler):
    """Unpickles arrays alone. It extends the one in Python, which has a method for each opcode."""

    stack: list[Any]
    memo: dict[int, Any]
    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise InputError(f"it names {module}.{name}, which is not run")
        return _KNOWN[module, name]

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, np.dtype):
            _version, order, *rest = state
            if order not in ("<", ">", "|", "=") or rest[:5] != [None, None, None, -1, -1]:
                raise InputError("it holds an array of records, expected one of numbers")
            self.stack[-1] = made.newbyteorder(order)
        elif isinstance(made, np.ndarray):
            _version, shape, dtype, fortran, data = state
            if math.prod(shape) * dtype.itemsize != len(data):
                raise InputError("it holds an array of another size than its shape")
            self.stack[-1] = _frombuffer(data, dtype, shape, "F" if fortran else "C")
            self.memo = {key: self.stack[-1] if value is made else value for key, value in self.memo.items()}
        else:
            raise InputError(f"it sets the state of {type(made).__name__}, expected plain values and arrays")

    dispatch[pickle.BUILD[0]] = load_build


def read_plain_pickle(data: bytes) -> Any:
    """Return the content of a pickle of None, numbers, text, lists, tuples, mappings, and arrays of numbers.

    Raises:
        InputError: it has anything else, or is damaged; the message begins with `it`.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except InputError:
        raise
    except Exception as error:  # of any opcode of a damaged pickle
        raise InputError(f"it cannot be read as a pickle: {type(error).__name__}") from error
