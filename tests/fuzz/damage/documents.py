"""Damage to JSON that stays JSON: other types, missing or repeated keys, huge numbers and deep nesting."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st


class Raw(str):
    """Text that stands in the file as it is."""


class Pairs(list):
    """An object as pairs of key and value, so that a key can be there twice."""


TEXTS = [
    *("", " ", "a", "\ud800", "\udcff", "a\x00b", "\x1b[2J\x1b]0;title\x07", "line\nbreak\r"),
    *("\u202e\u2066left\u2028", "../../etc/passwd", "/etc/passwd", "os:system"),
    *("x" * 70_000, "word " * 2_000, "n" * 300),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, 10**30, 1.5, -0.0, Raw("NaN"), Raw("-Infinity"), Raw("1e999")),
    *(Raw("9" * 4_400), Raw("[" * 50_000 + "]" * 50_000), Raw('{"a":' * 3_000 + "1" + "}" * 3_000)),
    *([], [[]], [None], Pairs(), Pairs([("", None)]), *TEXTS),
]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Damage a document at one to three places."""
    document = json.loads(data, object_pairs_hook=Pairs)
    for _ in range(draw(st.integers(1, 3))):
        document = _changed(draw, document)
    return _written(document).encode()


@st.composite
def damaged_line(draw: st.DrawFn, data: bytes) -> bytes:
    """Damage one line of a file that has a document on each."""
    lines = data.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = draw(damaged(lines[at]))
    return b"\n".join([*lines, b""])


def _changed(draw: st.DrawFn, document: Any) -> Any:
    """Go down from the top, and change what is there when the way ends."""
    if not isinstance(document, list) or not document or draw(st.integers(0, 5)) == 0:
        return draw(st.one_of(st.sampled_from(VALUES), st.text(max_size=5), st.integers()))
    at = draw(st.integers(0, len(document) - 1))
    pairs = isinstance(document, Pairs)
    way = draw(st.sampled_from(["inside"] * 6 + ["remove", "twice", "many", "key", "swap"]))
    copy = type(document)(document)
    if way == "remove":
        del copy[at]
    elif way == "twice":
        copy.insert(draw(st.integers(0, len(copy))), copy[at])
    elif way == "many":
        copy[at:at] = [copy[at]] * draw(st.sampled_from([2, 20, 300]))
    elif way == "swap":
        other = draw(st.integers(0, len(document) - 1))
        if pairs:
            copy[at] = (document[at][0], document[other][1])
        else:
            copy[at] = document[other]
    elif way == "key" and pairs:
        copy[at] = (draw(st.sampled_from([*TEXTS, document[0][0]])), document[at][1])
    elif pairs:
        copy[at] = (document[at][0], _changed(draw, document[at][1]))
    else:
        copy[at] = _changed(draw, document[at])
    return copy


def _written(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, Pairs):
        return f"{{{', '.join(f'{json.dumps(key)}: {_written(each)}' for key, each in value)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)
