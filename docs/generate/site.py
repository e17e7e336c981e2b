"""The sources of the site: pages of its own and generated ones, with their figures, written where Sphinx reads them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from docs.generate import aggregators, tasks, verbs
from docs.generate.figures import weights_figure
from docs.generate.formulas import formulas
from docs.generate.links import FILES, Places
from docs.generate.pages import Generators, assembled, note_places, own_pages
from docs.generate.parts import part_list
from infra.errors import InputError
from infra.registry import AGGREGATORS, KINDS, TASKS

OWN = "docs"
"""Folder of the site's own pages."""
LIST = "aggregators/index"
_MARK = ".made-by-docs-generate"
"""A file in a folder of sources, by which another one is not taken for it."""


def generators(root: Path) -> Generators:
    """Return what comments in pages can name as generated."""
    return {
        **{f"adapter/{task}": partial(tasks.adapter, task) for task in TASKS.names()},
        **{f"recipes/{task}": partial(tasks.recipes, task) for task in TASKS.names()},
        **{f"parts/{kind}": partial(part_list, registry) for kind, registry in KINDS.items()},
        "protocols": tasks.protocols,
        "public-sets": tasks.public_sets,
        "verbs": partial(verbs.verbs, root),
    }


def write_site(root: Path, out: Path) -> None:
    """Write the sources of the site; what is there and no part of it any more is removed.

    Args:
        root: of the repository.
        out: a folder for them, which is made.

    Raises:
        InputError: a page includes, or links to, what there is not; or the folder holds something else.
    """
    site = Site(root, out)
    site.write_own_pages()
    site.write_aggregators()
    site.remove_others()


class Site:
    """The sources of the site.

    Args:
        root: of the repository.
        out: a folder for them.
    """

    def __init__(self, root: Path, out: Path) -> None:
        if out.is_dir() and any(out.iterdir()) and not (out / _MARK).is_file():
            raise InputError(
                f"{out}: holds files of something else; name a new folder for the sources of the site"
            )
        self.root, self.out = root, out
        self.places = Places(root, out)
        self.pages = own_pages(root / OWN)
        note_places(self.pages, self.places, folder=OWN)
        self.places.add(aggregators.README, f"{LIST}.md")
        for name in AGGREGATORS.names():
            for made in (f"aggregators/{name}.md", f"aggregators/figures/{name}.png"):
                self.places.add(made, made)
        self.written: set[Path] = set()
        self._write(_MARK, b"")

    def write_own_pages(self, names: Iterable[str] = ()) -> None:
        """Write the site's own pages.

        Args:
            names: of pages; all where empty.
        """
        given = generators(self.root)
        for name in names or self.pages:
            text = assembled(name, self.pages[name], self.places, folder=OWN, generators=given)
            self._write(f"{name}.md", text.encode())

    def write_aggregators(self, names: Iterable[str] = ()) -> None:
        """Write the pages of aggregators, with a figure each, and the list of all.

        Args:
            names: of aggregators; all where empty.
        """
        listed = {of.name: of for of in aggregators.listings(self.root)}
        computed = formulas(self.root)
        for name in names or listed:
            figure = None
            if drawn := weights_figure(name):
                content, shown = drawn
                figure = f"figures/{name}.png", shown
                self._write(f"aggregators/{figure[0]}", content)
            page = f"aggregators/{name}"
            text = aggregators.page(listed[name], self.root, formulas=computed[name], figure=figure)
            self._write(f"{page}.md", self._linked(text, page))
            code = aggregators.file_of(listed[name], self.root)
            self._write(f"{FILES}/{code}", (self.root / code).read_bytes())
        self._write(f"{LIST}.md", self._linked(aggregators.list_page(self.root), LIST))

    def remove_others(self) -> None:
        """Remove what an earlier call wrote and this one did not."""
        for path in sorted(self.out.rglob("*"), reverse=True):
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path not in self.written | self.places.copied:
                path.unlink()

    def _linked(self, text: str, page: str) -> bytes:
        """Return a generated page of an aggregator with its links, which are those of the folder `aggregators`."""
        return self.places.rewritten(text, path=aggregators.README, page=page).encode()

    def _write(self, name: str, content: bytes) -> None:
        """Write a file, unless it is there as it is: Sphinx reads anew what is younger than its last look."""
        path = self.out / name
        self.written.add(path)
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
