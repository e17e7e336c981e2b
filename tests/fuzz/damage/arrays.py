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


_NAMES = ["features.npy", "x.npy", "x", "a.npy", "../x.npy", "x/y.npy", "é.npy", ".npy"]


@st.composite
def damaged_npz(draw: st.DrawFn, data: bytes) -> bytes:
    """Make another zip of the first array of one: of other names, more or fewer arrays, or a header that lies."""
    with np.load(io.BytesIO(data)) as held:
        first = held[held.files[0]]
    written, archive = io.BytesIO(), io.BytesIO()
    np.save(written, first)
    inside = draw(st.one_of(st.just(written.getvalue()), damaged_npy(written.getvalue())))
    method = draw(st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA]))
    with zipfile.ZipFile(archive, "w", method) as file:
        for name in draw(st.lists(st.sampled_from(_NAMES), max_size=3)):
            file.writestr(name, inside)
    return archive.getvalue()
