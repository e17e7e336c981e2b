"""Code in docstrings, as docutils is told of it."""

from __future__ import annotations

import pytest

from docs.docstrings import with_marked_code


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("A.\n\n    code\n\n        more\n\nB", "A.\n\n::\n\n    code\n\n        more\n\nB"),
        ("A:\n\n    code\n\nB:\n\n    code", "A:\n\n::\n\n    code\n\nB:\n\n::\n\n    code"),
        ("A::\n\n    code\n\n    more", "A::\n\n    code\n\n    more"),
        ("A.\n\nArgs:\n    x: it.\n        more of it.\n\nRaises:\n    E: why.", None),
        ("A.\n\n  quoted", None),
        ("    A.\n\n        code", "    A.\n\n    ::\n\n        code"),
        ("\n    first", None),
    ],
)
def test_code_is_marked_and_nothing_else_is(text, marked):
    assert "\n".join(with_marked_code(text.split("\n"))) == (text if marked is None else marked)
