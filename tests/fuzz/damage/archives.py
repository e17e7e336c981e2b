"""Damage to tar files that stay tar files: other names, kinds, sizes, headers, contents and orders of members."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from hypothesis import strategies as st

_FIELDS: dict[str, list[Any]] = {
    "name": [
        *("../away.png", "/tmp/away.png", "in/../../away.txt", "", ".", "..", "in/", "in", "in/0", "in/.png"),
        *("in/0.PNG", "in/0.png.txt", "in/0.png/1.png", f"{'x' * 300}.png", "in/\x1b[2J.png", "in/a\nb.txt"),
        *("in/\udcff.png", "in/é.txt", "in/a\u2028\u202eb.png"),
    ],
    "type": [
        *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"Z"),
        *(tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE),
    ],
    "linkname": ["/etc/passwd", "in/0.png"],
    "size": [0, 1, 511, 513, 1 << 20, 1 << 33, 1 << 60, -1],
    "pax_headers": [
        {"path": "../away.png"},
        {"size": "9" * 11},
        {"GNU.sparse.map": "x", "GNU.sparse.size": "9"},
        {"mtime": "nan"},
    ],
}
_CONTENTS = [b"", b"\xff", b"{", b"[]", b'{"caption": [1, null, "a"]}', b"\x89PNG" + bytes(90)]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Write the members again, one to three of them other than they were, or elsewhere."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    for _ in range(draw(st.integers(1, 3))):
        at, to = (draw(st.integers(0, len(members) - 1)) for _ in range(2))
        member, held = members.pop(at)
        way = draw(st.sampled_from([*_FIELDS, "content", "twice", "move"]))
        if way in _FIELDS:
            member = member.replace(deep=True)
            setattr(member, way, draw(st.sampled_from(_FIELDS[way])))
        elif way == "content":
            held = draw(st.sampled_from(_CONTENTS))
            member = member.replace(deep=True)
            member.size = len(held)
        elif way == "twice":
            members.insert(to, (member, held))
        members.insert(to if way == "move" else at, (member, held))
    form = draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    written = [
        member.tobuf(form, errors="surrogateescape") + held + bytes(-len(held) % 512)
        for member, held in members
    ]
    return b"".join(written) + bytes(1024)
