"""`polypool data [NAME ...]`: List the public data sets of the recipes: sources, terms, and what is on this machine.

Files are looked for by their names below `--folder`, as their authors' archives leave them. Nothing is downloaded: most
authors ask for consent, and some for a form.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.errors import unknown
from polypool.infra.files import existing_folder
from polypool.infra.paths import home
from polypool.infra.process.command import command


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which, and where to look."""

    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(default: a line for each)")
    ] = ()
    """Data sets, of which files and commands are shown."""
    folder: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: the project's home)")] = None
    """Where the files are looked for, and below."""


@command
def main() -> None:
    """Show them."""
    options = tyro.cli(DataOptions, prog="polypool data", description=__doc__)
    from polypool.pipelines.data.public_sets import SETS, found_below, report, summary

    for name in options.names:
        if name not in SETS:
            raise unknown("public data set", name, SETS)
    folder = existing_folder(options.folder or home(), what="the folder of the data sets' files")
    wanted = {file.name for each in SETS.values() for file in each.files}
    found = found_below(folder, wanted)
    if not options.names:
        width = max(map(len, SETS))
        for name, each in SETS.items():
            print(f"{name:<{width}}  {summary(each, found)}")
        print(f"\nlooked for below {folder}; polypool data NAME shows files, addresses and commands")
    for name in options.names:
        print(textwrap.dedent(report(name, SETS[name], found)))


if __name__ == "__main__":
    main()
