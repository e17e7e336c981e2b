"""Links between files of the repository, made into links between pages of the site."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs.generate.sections import outside_code
from infra.errors import InputError

_LINK = re.compile(r"(?P<before>(?<!\\)\]\()(?P<target>[^()\s]+)(?=[)\s])")
_CODE = re.compile(r"(`+)(?:(?!`).)+?\1(?!`)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.\-]*:|//")
FILES = "files"
"""Folder of the site that holds the files it links to and does not show."""


@dataclass(frozen=True)
class Link:
    """A link of a file of the repository to another one."""

    line: int
    target: str
    path: str
    """Of the file that is linked to, from the repository's root."""
    anchor: str
    """Of a section in it; empty for none."""


def replaced(text: str, change: Callable[[str, int], str]) -> str:
    """Return a document with the targets of its links changed; what is code is left alone.

    Args:
        text: the document.
        change: gets a target and the number of its line, and returns what stands in its place.
    """
    lines = []
    for number, (line, is_text) in enumerate(outside_code(text.split("\n")), start=1):
        hidden: list[str] = []
        if is_text:

            def hide(code: re.Match[str], hidden: list[str] = hidden) -> str:
                hidden.append(code[0])
                return "\0" * len(code[0])

            def put(link: re.Match[str], number: int = number) -> str:
                return link["before"] + change(link["target"], number)

            line = _LINK.sub(put, _CODE.sub(hide, line))
            line = re.sub("\0+", "\0", line)
            for code in hidden:
                line = line.replace("\0", code, 1)
        lines.append(line)
    return "\n".join(lines)


def links_of(text: str, path: str) -> Iterator[Link]:
    """Yield the links of a document to files of the repository, and to sections of its own.

    Args:
        text: the document.
        path: its own, from the repository's root.
    """
    found: list[Link] = []

    def note(target: str, line: int) -> str:
        if not _ELSEWHERE.match(target):
            file, _, anchor = target.partition("#")
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
            found.append(Link(line, target, place, anchor))
        return target

    replaced(text, note)
    yield from found


@dataclass
class Places:
    """Where on the site the files of the repository, and their sections, are shown.

    Attributes:
        root: of the repository.
        out: the folder of the site's sources.
        shown: by file and section (empty for the file as a whole), the file of the site that shows it, and the section
            there.
        copied: files of the site that were linked to and are shown on no page.
    """

    root: Path
    out: Path
    shown: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    copied: set[Path] = field(default_factory=set)

    def add(self, file: str, place: str, *, section: str = "", on_page: str = "") -> None:
        """Note what shows a file or a section of it; the first that does is what is linked to.

        Args:
            file: of the repository, or one that is made for the site.
            place: the file of the site's sources, such as `results.md`.
            section: of the file; empty for the file as a whole.
            on_page: the anchor there; empty for the top.
        """
        self.shown.setdefault((file, section), (place, on_page))

    def rewritten(self, text: str, *, path: str, page: str) -> str:
        """Return Markdown of the repository with its links as they are on a page of the site.

        Args:
            text: Markdown.
            path: of the file that it stands in, from the repository's root.
            page: that it is shown on, such as `tasks/vqa`.

        Raises:
            InputError: a link to what there is not.
        """

        def change(target: str, line: int) -> str:
            if _ELSEWHERE.match(target):
                return target
            (link,) = links_of(f"[]({target})", path)
            here = posixpath.dirname(page) or "."
            return self._target(link, where=path, here=here)

        return replaced(text, change)

    def _target(self, link: Link, *, where: str, here: str) -> str:
        known = self.shown.get((link.path, link.anchor)) or self.shown.get((link.path, ""))
        if known:
            place, anchor = known
            return posixpath.relpath(place, here) + (f"#{anchor}" if anchor else "")
        source = self.root / link.path
        if not source.is_file():
            raise InputError(f"{where}: links to {link.target!r}, which is no file of the repository")
        copy = self.out / FILES / link.path
        self.copied.add(copy)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            shutil.copyfile(source, copy)
        return posixpath.relpath(f"{FILES}/{link.path}", here)
