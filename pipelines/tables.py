"""`python -m pipelines.tables [FILES]`: write the tables of Markdown files anew from the results that they name.

A table stands between two lines of comment, of which the first names a file that `python -m pipelines.compare --out`
wrote, by its path from the folder of the Markdown file, and the table where it has several (FILE#TABLE):

    <!-- table: pipelines/results/demo.csv -->
    <!-- end of table -->

What is between them is replaced: scores of one task, or task x aggregator, what they mean, and the commits and commands
that they came from. `<!-- table: FILE as text -->` shows it as in a terminal. `--check` writes nothing and ends with 1
where a table is not what its results say.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from infra.errors import command


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    """Which files."""

    files: tyro.conf.Positional[tuple[Path, ...]] = (Path("README.md"),)
    """Markdown files."""
    check: bool = False
    """Write nothing, and end with 1 where a table is not current."""


@command
def main() -> None:
    """Renew tables, or say which are not current."""
    options = tyro.cli(TablesOptions, prog="python -m pipelines.tables", description=__doc__)
    from infra.files import atomic
    from pipelines.comparison.documents import read_document, renewed

    stale = False
    for path in options.files:
        text = read_document(path)
        new, changed = renewed(text, path.parent, where=str(path))
        for line in changed:
            print(f"{path}: {line}" + ("" if options.check else ", and is renewed"))
        stale |= bool(changed)
        if changed and not options.check:
            with atomic(path) as file:
                file.write(new.encode())
    if options.check and stale:
        print(f"`python -m pipelines.tables {' '.join(map(str, options.files))}` renews them")
        sys.exit(1)


if __name__ == "__main__":
    main()
