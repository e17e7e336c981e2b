"""Damage to lines and columns: lines and fields that are missing, repeated, swapped or hostile."""

from __future__ import annotations

from hypothesis import strategies as st

_FIELDS = [
    *(b"", b" ", b'"', b'"unfinished', b'"a\nb"', b"a,b", b"\t", b"\x00", b"\xff\xfe", b"\x1b[31mred\x1b[0m"),
    *(b"-1", b"nan", b"inf", b"1e999", b"9" * 4_400, "é\u2028".encode(), b"x" * 200_000),
    "\uff11\u0661".encode(),  # digits of other scripts
]


@st.composite
def damaged(draw: st.DrawFn, data: bytes, *, separators: bytes) -> bytes:
    """Damage a text once to three times.

    Args:
        draw: by hypothesis.
        data: the text.
        separators: the characters that separate columns, of which the first in a line counts.
    """
    lines = data.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        way = draw(st.sampled_from(["field"] * 4 + ["remove", "twice", "swap", "blank", "quote", "ends"]))
        if way == "field":
            lines[at] = _field(draw, lines[at], separators)
        elif way == "remove" and len(lines) > 1:
            del lines[at]
        elif way == "twice":
            lines.insert(other, lines[at])
        elif way == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif way == "blank":
            lines.insert(at, draw(st.sampled_from([b"", b"   ", b"\t\t", b"\r", b"#"])))
        elif way == "quote":
            place = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:place] + b'"' + lines[at][place:]
        else:
            lines = [line + b"\r" for line in lines]
    return b"\n".join(lines)


def _field(draw: st.DrawFn, line: bytes, separators: bytes) -> bytes:
    separator = next((bytes([each]) for each in separators if bytes([each]) in line), separators[:1])
    fields = line.split(separator)
    at = draw(st.integers(0, len(fields) - 1))
    way = draw(st.sampled_from(["hostile", "hostile", "remove", "twice"]))
    if way == "remove":
        del fields[at]
    elif way == "twice":
        fields.insert(at, fields[at])
    else:
        fields[at] = draw(st.sampled_from(_FIELDS))
    return separator.join(fields)
