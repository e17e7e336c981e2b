"""Damage to `.npy` and `.npz`: headers with other shapes and types, and zips with other methods."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
from hypothesis import strategies as st

_DESCRIPTIONS = [
    "'<f4'", "'<f8'", "'<f2'", "'>f4'", "'|O'", "'<U3'", "'<U1000000000'", "'|S0'", "'|V4'", "'<M8[s]'", "'<c8'",
    "'|b1'", "'<i8'", "[('a', '<f4')]", "'f4,f4'", "''", "None", "7", "'x'", "'" + "9" * 5000 + "'", "[]", "['<f4']",
    "('<f4', (1000000000,))",
]  # fmt: skip
_SHAPES = [
    "()", "(0,)", "(1,)", "(2, 4)", "(4, 2)", "(8,)", "(1000000000, 4)", "(-1, 4)", "(2.0, 4)", "(True, 8)", "8",
    "(2, 0)", "(0, 4)", "(1, 1, 2, 4)", "(99999999999999999999, 4)", "(" + "1, " * 70 + "8)", "('a',)", "None",
    "(4611686018427387904, 4)",
]  # fmt: skip
_HEADERS = [
    "{", "", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)", "__import__('os').system('true')",
    "(" * 5000, "[" * 90 + "]" * 90, "{'descr': '<f4'}", "\x00" * 20, "1" * 5000,
    "{'descr': '<f4', 'fortran_order': 3, 'shape': (2, 4)}", "{**{}}", "-" * 3000 + "1",
]  # fmt: skip


@st.composite
def damaged_npy(draw: st.DrawFn, data: bytes) -> bytes:
    """Give an array's bytes a header that says something else."""
    start = 10 + struct.unpack("<H", data[8:10])[0]
    if draw(st.integers(0, 3)) == 0:
        header = draw(st.sampled_from(_HEADERS))
    else:
        description, shape = draw(st.sampled_from(_DESCRIPTIONS)), draw(st.sampled_from(_SHAPES))
        order = draw(st.sampled_from(["False", "False", "True"]))
        header = f"{{'descr': {description}, 'fortran_order': {order}, 'shape': {shape}, }}"
    written, version = (header + "\n").encode("latin-1", "replace"), draw(st.sampled_from([1, 1, 1, 2, 3, 9]))
    size = len(written) + draw(st.sampled_from([0, 0, 0, -5, 1000]))
    packed = struct.pack("<H" if version == 1 else "<I", max(0, size) & 0xFFFF)
    return b"\x93NUMPY" + bytes([version, 0]) + packed + written + data[start:]


@st.composite
def damaged_npz(draw: st.DrawFn, data: bytes) -> bytes:
    """Make another zip of the arrays of one: of other names, more or fewer arrays, or a header that lies."""
    with np.load(io.BytesIO(data)) as held:
        arrays = {name: held[name] for name in held.files}
    first = next(iter(arrays.values()))
    written = io.BytesIO()
    np.save(written, first)
    inside = draw(st.one_of(st.just(written.getvalue()), damaged_npy(written.getvalue())))
    names = draw(
        st.lists(
            st.sampled_from(["features.npy", "x.npy", "x", "a.npy", "../x.npy", "x/y.npy", "é.npy", ".npy"]),
            max_size=3,
        )
    )
    archive = io.BytesIO()
    deflated = draw(st.booleans())
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as file:
        for name in names:
            file.writestr(name, inside)
        if draw(st.integers(0, 9)) == 0:
            file.writestr("x.npy", _bomb(), zipfile.ZIP_DEFLATED)
    return _header(draw, archive.getvalue())


def _bomb() -> bytes:
    """Return an array of zeros that is much smaller than it says, and much larger than its archive."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (400000000, 4), }\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(1 << 23)


def _header(draw: st.DrawFn, data: bytes) -> bytes:
    """Set the fields for encryption, method, sizes or the checksum of all entries."""
    way = draw(st.sampled_from(["none", "encrypted", "method", "size", "checksum"]))
    if way == "none":
        return data
    number = draw(st.sampled_from([1, 9, 12, 14, 93, 97, 99, 65535]))
    changed = bytearray(data)
    for sign, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(sign)
        while at >= 0:
            places = {"encrypted": flags, "method": flags + 2, "checksum": flags + 8, "size": flags + 12}
            value = 1 if way == "encrypted" else number
            struct.pack_into("<H", changed, at + places[way], value)
            at = changed.find(sign, at + 4)
    return bytes(changed)
