"""Fast reader of many small `.npz` files.

`zipfile` lists the members and their places; reading them through it takes longer than the arrays themselves. Equal
members of many files, such as the ids of queries, are unpacked once.
"""

from __future__ import annotations

import functools
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from polypool.infra.errors import InputError

_BEFORE_NAME = struct.Struct("<4s22xHH")
"""The header of a member: its mark, and the lengths of its name and its extra field."""
_MARK = b"PK\3\4"
_ENCRYPTED = 1
_MAGIC = np.lib.format.magic(1, 0)


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of a file, read-only, each unpacked when used, without unpickling.

    Raises:
        InputError: the file or an array cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data = path.read_bytes()
            with zipfile.ZipFile(BytesIO(self._data)) as file:
                self._members = {each.filename.removesuffix(".npy"): each for each in file.infolist()}
        except Exception as error:
            raise self._unreadable(error) from error

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> np.ndarray:
        member = self._members[name]
        try:
            return _array(self._packed(member), member.compress_type, member.file_size, member.CRC)
        except Exception as error:
            raise self._unreadable(error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def _packed(self, member: zipfile.ZipInfo) -> bytes:
        mark, name, more = _BEFORE_NAME.unpack_from(self._data, member.header_offset)
        if mark != _MARK or member.flag_bits & _ENCRYPTED:
            raise zipfile.BadZipFile(f"{member.filename} is encrypted, or not where the file says")
        begins = member.header_offset + _BEFORE_NAME.size + name + more
        return self._data[begins : begins + member.compress_size]

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(f"{self.path} cannot be read: {error}")


@functools.lru_cache(maxsize=16)
def _array(packed: bytes, method: int, size: int, crc: int) -> np.ndarray:
    """Return the array in a member of a file; equal ones share their memory.

    Args:
        packed: its bytes in the file.
        method: of packing, as in `zipfile`.
        size, crc: of the unpacked bytes.
    """
    if method == zipfile.ZIP_DEFLATED:
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size + 1)  # no more than was declared
    elif method == zipfile.ZIP_STORED:
        data = packed
    else:
        raise zipfile.BadZipFile(f"it is packed by the method {method}, which numpy does not write")
    if len(data) != size or zlib.crc32(data) != crc:
        raise zipfile.BadZipFile(f"{len(data):,} bytes that are not the {size:,} that were written")
    if data.startswith(_MAGIC):
        ends = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
        begins = len(_MAGIC) + 2 + ends
        shape, by_columns, dtype = _header(data[len(_MAGIC) : begins])
        if not (by_columns or dtype.hasobject):
            return np.frombuffer(data, dtype, count=math.prod(shape), offset=begins).reshape(shape)
    x = np.lib.format.read_array(BytesIO(data), allow_pickle=False)
    x.flags.writeable = False
    return x


@functools.lru_cache(maxsize=64)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and dtype in a header; numpy's reader is slow, and thousands of headers are equal."""
    return np.lib.format.read_array_header_1_0(BytesIO(data))
