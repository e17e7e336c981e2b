"""What of the public data sets lies below a folder, and what is said of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from pipelines.sources.records import PublicSet
from pipelines.sources.sets import SETS

DEPTH = 4
"""Folders below the first one that are looked through: archives hold their files one or two folders deep."""
_MOST = 10_000
"""Entries of a folder beyond which those below are not looked at: it is one of pictures or clips."""


def found_below(folder: Path, names: Collection[str]) -> dict[str, Path]:
    """Return where files, and folders that are written with a `/` behind, are; of several the first by its path.

    Links to folders are not followed, and what may not be read is passed over.
    """
    found: dict[str, Path] = {}
    for place, folders, files in os.walk(folder):
        here = Path(place)
        for name in sorted({*(f"{each}/" for each in folders), *files} & {*names}):
            found.setdefault(name, here / name)
        deep = len(here.relative_to(folder).parts) >= DEPTH or len(files) > _MOST
        folders[:] = [] if deep else sorted(each for each in folders if not each.startswith("."))
    return found


def summary(of: PublicSet, found: Mapping[str, Path]) -> str:
    """Return a line on a data set: its title, and how many of the files that it cannot go without are here."""
    needed = [file.name for file in of.files if not file.use]
    here = sum(name in found for name in needed)
    return f"{of.title}: " + (
        "all files here" if here == len(needed) else f"{here} of {len(needed)} files here"
    )


def where_published(path: Path) -> str:
    """Return where a file or folder of a public data set is to be had, to be said after that it is missing."""
    sets = [name for name, of in SETS.items() if path.name in {file.name.rstrip("/") for file in of.files}]
    return f"; python -m pipelines.data {' '.join(sets)} says where it is to be had" if sets else ""


def report(name: str, of: PublicSet, found: Mapping[str, Path]) -> str:
    """Return what a person needs to get a data set and to read it."""
    lines = [f"{name}: {of.title}", f"  {of.page}", f"  {of.terms}", ""]
    for file in of.files:
        where = f"here: {found[file.name]}" if file.name in found else "not here: " + file.url
        size = f", {file.size}" if file.size and file.name not in found else ""
        use = f"\n    {file.use}" if file.use else ""
        lines.append(f"  {file.name:<{max(len(each.name) for each in of.files)}}  {where}{size}{use}")
    return "\n".join([*lines, "", *(f"  {command}" for command in of.commands), ""])
