"""Sections of Markdown files, by their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.errors import InputError, unknown

_HEADING = re.compile(r"(?P<marks>#{1,6}) +(?P<title>.+?) *")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it, up to the next heading.

    Attributes:
        level: 1 for `#`.
        title: of the heading, as it is written.
        slug: its anchor, as GitHub makes it.
        lines: below the heading.
    """

    level: int
    title: str
    slug: str
    lines: tuple[str, ...]


def slug_of(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it: that of `Faults, and more` is `faults-and-more`."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def outside_code(lines: list[str] | tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is outside of fenced and indented code."""
    fence = ""
    blank = True  # indented lines behind a blank one are code
    code = False
    for line in lines:
        marks = _FENCE.match(line)
        if fence:
            yield line, False
            if marks and marks[1].startswith(fence) and not line.strip().strip("`~"):
                fence = ""
            continue
        if marks:
            fence = marks[1]
            yield line, False
            continue
        indented = line.startswith("    ")
        code = indented and (blank or code)
        yield line, not code
        blank = not line.strip()


def sections(text: str) -> list[Section]:
    """Split a document at its headings. What stands before the first one is left out."""
    found: list[tuple[int, str, list[str]]] = []
    for line, is_text in outside_code(text.splitlines()):
        heading = _HEADING.fullmatch(line) if is_text else None
        if heading:
            found.append((len(heading["marks"]), heading["title"], []))
        elif found:
            found[-1][2].append(line)
    return [
        Section(level=level, title=title, slug=slug_of(title), lines=tuple(lines))
        for level, title, lines in found
    ]


def chapter(path: Path, slug: str, *, beginning: bool = False) -> list[Section]:
    """Return a section of a file with those below it.

    Args:
        path: the file.
        slug: of its heading; the first one where empty.
        beginning: leave out the sections below it.

    Raises:
        InputError: there is no such file or section.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no such file to include a section of")
    every = sections(path.read_text())
    slugs = [section.slug for section in every]
    if not every or (slug and slug not in slugs):
        raise unknown(f"section of {path.name}", slug, slugs)
    at = slugs.index(slug) if slug else 0
    end = at + 1
    while not beginning and end < len(every) and every[end].level > every[at].level:
        end += 1
    return every[at:end]
