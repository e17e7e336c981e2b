"""Odd but intact HDF5 files: other types and shapes, sizes without data, data in other files."""

from __future__ import annotations

import io
from collections.abc import Callable

import h5py
import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

SECRET = "secret.bin"
"""A file beside the damaged one, of which nothing may be read."""
SECRET_VALUE = 777.0
_LARGE = [10**6, 10**9, 2**40]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Replace one or two data sets of a file, at any depth, by odd ones."""
    held = io.BytesIO(data)
    with h5py.File(held, "r+") as file:
        for _ in range(draw(st.integers(1, 2))):
            name = draw(st.sampled_from([*file, "image_ids", "pos_boxes", "new"]))
            way = draw(st.sampled_from(_WAYS))
            try:
                if name in file:
                    del file[name]
                way(draw, file, name)
            except (ValueError, TypeError, OSError, RuntimeError):  # the library does not write every oddity
                reject()
    return held.getvalue()


def _odd_type(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    text, binary = h5py.string_dtype(), h5py.string_dtype("ascii", 4)
    values = [
        np.array([1.5, np.nan, np.inf]),
        np.array([2**63, 2**64 - 1], np.uint64),
        np.array([b"a", b"\xff\xfe", b""], binary),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        np.array([[1, 2], [3, 4]], h5py.enum_dtype({"A": 1, "B": 2})),
        np.ones((3, 2), np.complex64),
        np.ones((3, 2), bool),
        np.array([np.void(b"abcd")] * 3),
        np.ones((3, 2), "f2"),
        np.ones((3, 2), ">f8"),
        np.zeros(3, np.dtype(("f4", (2, 4)))),
        np.array(["é\u2028", "\x1b[2J", "a" * 100], object),
    ]
    value = draw(st.sampled_from(values))
    file.create_dataset(name, data=value, dtype=text if value.dtype == object else None)


def _odd_references(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    data = file.create_dataset(name, (3,), draw(st.sampled_from([h5py.ref_dtype, h5py.regionref_dtype])))
    data[0] = file.ref if h5py.check_ref_dtype(data.dtype) is h5py.Reference else data.regionref[:2]


def _ragged(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    data = file.create_dataset(name, (3,), h5py.vlen_dtype(np.dtype(draw(st.sampled_from(["f4", "i8"])))))
    data[0], data[2] = [1, 2, 3], []


_ODD_SHAPES = [(), (0,), (1,), (3,), (0, 2), (3, 0), (3, 1), (3, 2), (3, 3), (2, 2, 2), (1,) * 12]


def _odd_shape(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    if draw(st.integers(0, 9)) == 0:
        file.create_dataset(name, data=h5py.Empty("f4"))
        return
    shape, kind = draw(st.sampled_from(_ODD_SHAPES)), draw(st.sampled_from(["f4", "i8", "i4"]))
    file.create_dataset(name, data=np.full(shape, draw(st.sampled_from([0, -1, 1, 5, 10**6])), kind))


def _large(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    """A few kilobytes that claim rows without end: chunks that were never written."""
    rows = draw(st.sampled_from(_LARGE))
    shape = draw(st.sampled_from([(rows,), (rows, 2), (rows, 3, 4), (1, rows, 4), (2, rows), (rows, 0)]))
    file.create_dataset(name, shape, draw(st.sampled_from(["f4", "i8", "i1"])), chunks=True)


def _bomb(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    shape = (1, 1 << 21, 8)
    file.create_dataset(name, data=np.zeros(shape, "f4"), chunks=shape, compression="gzip")


def _elsewhere(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    """Data that another file holds."""
    way = draw(st.sampled_from(["link", "storage", "virtual"]))
    if way == "storage":
        file.create_dataset(name, (3, 2, 4), "f4", external=[(SECRET, 0, 96)])
    elif way == "virtual":
        layout = h5py.VirtualLayout((3, 2, 4), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "image_features", (3, 2, 4))
        file.create_virtual_dataset(name, layout)
    else:
        links = [h5py.ExternalLink("other.h5", "image_features"), h5py.ExternalLink("/dev/zero", "x")]
        file[name] = draw(
            st.sampled_from([*links, h5py.SoftLink("/image_features"), h5py.SoftLink(f"/{name}")])
        )


def _group(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    group = file.create_group(name)
    if draw(st.booleans()):
        group["itself"] = group
        group["a"] = np.ones((2, 4), "f4")


def _filtered(draw: st.DrawFn, file: h5py.File, name: str) -> None:
    """Chunks behind a filter that this machine may not have, or whose bytes are not what it expects."""
    data = file.create_dataset(name, (3, 2, 4), "f4", chunks=(1, 2, 4), compression="gzip", fletcher32=True)
    data.id.write_direct_chunk((0, 0, 0), draw(st.binary(min_size=1, max_size=40)))


_WAYS: list[Callable[[st.DrawFn, h5py.File, str], None]] = [
    *[_odd_type, _odd_shape, _large, _elsewhere] * 2,
    *[_odd_references, _ragged, _bomb, _group, _filtered],
]
