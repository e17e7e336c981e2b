"""Damage to bytes: flips, cuts, moved or repeated pieces, other encodings."""

from __future__ import annotations

from hypothesis import strategies as st

_PIECES = [
    *(b"\x00", b"\x00" * 64, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\xc3", b"\xe2\x80\xa8"),
    *(b"\x1b]0;title\x07\x1b[2J", b"\r", b"\r\n\r\n", b'"', b"9" * 4400, b"NaN"),
    b"\xed\xa0\x80",  # half a surrogate pair in UTF-8
]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Damage the bytes of a file once to four times."""
    for _ in range(draw(st.integers(1, 4))):
        data = draw(st.sampled_from(_WAYS))(draw, data)
    return data


def _place(draw: st.DrawFn, data: bytes) -> int:
    """Draw a place; half of them are near the beginning, where files say what they are."""
    last = len(data)
    return draw(st.one_of(st.integers(0, min(last, 256)), st.integers(0, last)))


def _flip(draw: st.DrawFn, data: bytes) -> bytes:
    if not data:
        return data
    at = min(_place(draw, data), len(data) - 1)
    return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]


def _cut(draw: st.DrawFn, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _remove(draw: st.DrawFn, data: bytes) -> bytes:
    start, stop = sorted((_place(draw, data), _place(draw, data)))
    return data[:start] + data[stop:]


def _repeat(draw: st.DrawFn, data: bytes) -> bytes:
    start, stop = sorted((_place(draw, data), _place(draw, data)))
    return data[:stop] + data[start:stop] * draw(st.integers(1, 3)) + data[stop:]


def _insert(draw: st.DrawFn, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + draw(st.sampled_from(_PIECES)) + data[at:]


def _overwrite(draw: st.DrawFn, data: bytes) -> bytes:
    at, piece = _place(draw, data), draw(st.sampled_from(_PIECES))
    return data[:at] + piece + data[at + len(piece) :]


def _whole(draw: st.DrawFn, data: bytes) -> bytes:
    with_other_ends = (data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"))
    encoded = (b"\xef\xbb\xbf" + data, data.decode("latin-1").encode("utf-16"))
    others = (b"", data + data, data[::-1], bytes(len(data)), b"<html>404</html>")
    return draw(st.sampled_from([*with_other_ends, *encoded, *others]))


_WAYS = [_flip, _flip, _cut, _remove, _repeat, _insert, _overwrite, _whole]
