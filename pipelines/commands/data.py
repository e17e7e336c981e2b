"""`polypool data [NAME ...]`: List the public data sets of the recipes: sources, terms, and what is on this machine.

Files are looked for by their names below `--folder`, as their authors' archives leave them. Nothing is downloaded: most
authors ask for consent, and some for a form.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.errors import unknown
from polypool.infra.files import existing_folder
from polypool.infra.paths import home
from polypool.infra.process.command import command


def show(
    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(default: a line for each)")
    ] = (),
    *,
    folder: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: the project's home)")] = None,
) -> None:
    """Show data sets.

    Args:
        names: data sets, of which files and commands are shown.
        folder: where the files are looked for, and below.
    """
    from polypool.pipelines.data.public_sets import SETS, found_below, report, summary

    for name in names:
        if name not in SETS:
            raise unknown("public data set", name, SETS)
    folder = existing_folder(folder or home(), what="the folder of the data sets' files")
    found = found_below(folder, {file.name for each in SETS.values() for file in each.files})
    for name in names:
        print(textwrap.dedent(report(name, SETS[name], found)))
    if not names:
        width = max(map(len, SETS))
        for name, each in SETS.items():
            print(f"{name:<{width}}  {summary(each, found)}")
        print(f"\nlooked for below {folder}; polypool data NAME shows files, addresses and commands")


@command
def main() -> None:
    tyro.cli(show, prog="polypool data", description=__doc__)
