"""Docstrings, whose text has the marks of Markdown, as docutils reads them."""

from __future__ import annotations

from collections.abc import Iterable


def with_marked_code(lines: Iterable[str]) -> list[str]:
    """Return a docstring with `::` before its code: indented by four blanks or more behind an empty line.

    Markdown knows such code, and docutils takes it for a quotation unless it is marked. Code that is marked stays as it
    is, and so does what stands below a heading such as `Args:`, without an empty line between.
    """
    marked: list[str] = []
    above = ""  # the last line that is not empty
    apart = False  # an empty line is between
    code = 0  # how deep the code is that the lines are of
    for line in lines:
        if line.strip():
            depth, outer = _depth(line), _depth(above)
            if code and depth < code:
                code = 0
            if not code and apart and above and depth >= outer + 4:
                code = depth
                if not above.rstrip().endswith("::"):
                    marked += [" " * outer + "::", ""]
            above = line
        apart = not line.strip()
        marked.append(line)
    return marked


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
