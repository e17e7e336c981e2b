"""The site's own pages, with the sections of other files that they include.

A line of comment stands for a section and all below it, or for its beginning alone, up to the next heading:

    <!-- include: README.md#speed -->
    <!-- beginning of: README.md#recipes -->

The heading itself is left out where the page has one of its own above the comment, below which the headings of what is
included go on.
A line `<!-- generated: NAME -->` stands for what the code says, by one of the functions that are given for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate.links import Places
from docs.generate.sections import chapter, outside_code, sections
from infra.errors import unknown

_INCLUDE = re.compile(r"<!-- (?P<what>include|beginning of): (?P<file>[^#\s]+)(?:#(?P<slug>\S+))? -->")
_GENERATED = re.compile(r"<!-- generated: (?P<name>\S+) -->")
Generators = Mapping[str, Callable[[], str]]


def own_pages(folder: Path) -> dict[str, str]:
    """Return the text of each of the site's own pages, by its name, such as `tasks/index`."""
    return {
        file.relative_to(folder).with_suffix("").as_posix(): file.read_text()
        for file in sorted(folder.rglob("*.md"))
    }


def note_places(pages: Mapping[str, str], places: Places, *, folder: str) -> None:
    """Note which page shows which files and sections.

    Args:
        pages: the site's own, by name.
        places: is added to.
        folder: of the pages, from the repository's root.

    Raises:
        InputError: a page includes what there is not.
    """
    for page, text in pages.items():
        file, place = f"{folder}/{page}.md", f"{page}.md"
        places.add(file, place)
        for section in sections(text):
            places.add(file, place, section=section.slug, on_page=section.slug)
        for line in text.splitlines():
            if not (found := _INCLUDE.fullmatch(line)):
                continue
            first, *below = chapter(
                places.root / found["file"], found["slug"] or "", beginning=found["what"] != "include"
            )
            above = [heading.slug for heading in sections(text.partition(line)[0])]
            at = above[-1] if len(above) > 1 else ""
            places.add(found["file"], place, section=first.slug, on_page=at)
            if not found["slug"]:
                places.add(found["file"], place)
            for section in below:
                places.add(found["file"], place, section=section.slug, on_page=section.slug)


def assembled(page: str, text: str, places: Places, *, folder: str, generators: Generators) -> str:
    """Return a page's Markdown as Sphinx reads it.

    Args:
        page: its name.
        text: as it is written in the repository.
        places: where links lead.
        folder: of the pages, from the repository's root.
        generators: what comments name as generated.

    Raises:
        InputError: it includes, or links to, what there is not.
    """
    parts: list[str] = []
    level = 0
    own: list[str] = []

    def flush() -> None:
        if own:
            parts.append(places.rewritten("\n".join(own), path=f"{folder}/{page}.md", page=page))
            own.clear()

    for line, is_text in outside_code(text.splitlines()):
        if is_text and (marks := re.match(r"#{1,6}(?= )", line)):
            level = len(marks[0])
        if is_text and (found := _INCLUDE.fullmatch(line)):
            flush()
            parts.append(_included(found, page, places, below=level))
        elif is_text and (found := _GENERATED.fullmatch(line)):
            flush()
            if found["name"] not in generators:
                raise unknown("generated part of a page", found["name"], generators)
            parts.append(generators[found["name"]]())
        else:
            own.append(line)
    flush()
    return "\n".join(parts).rstrip() + "\n"


def _included(found: re.Match[str], page: str, places: Places, *, below: int) -> str:
    """Return a section; headings in it are deeper than the page's last one, whose level is `below`, or 0 for none."""
    first, *rest = chapter(
        places.root / found["file"], found["slug"] or "", beginning=found["what"] != "include"
    )
    lines = [*first.lines] if below else [f"# {first.title}", *first.lines]
    below = below or 1
    for section in rest:
        lines += [f"{'#' * (section.level - first.level + below)} {section.title}", *section.lines]
    return places.rewritten("\n".join(lines).strip("\n") + "\n", path=found["file"], page=page)
