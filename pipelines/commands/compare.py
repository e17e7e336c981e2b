"""`polypool compare --experiment NAME`: Compare the runs of an experiment in tables and figures.

A table for each task, data set and protocol; our numbers beside published ones; which differences are significant,
over seeds and queries and corrected for the number of pairs; what more seeds would show; what the aggregators cost;
and, over several tasks or data sets, task x aggregator.

`polypool compare tables FILES` renews the tables in Markdown files from results that --out wrote. A table stands
between two comments, the first of which names a file relative to the Markdown file's folder (FILE#TABLE for one of
several tables; `FILE as text` aligns it as in a terminal):

    <!-- table: docs/results/demo.csv -->
    <!-- end of table -->
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.files import atomic, make_folder
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.storage.places import local


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What to compare."""

    experiment: str = "polypool"
    """MLflow experiment."""
    metric: str = ""
    """Metric that orders the rows and is drawn, such as `i2t/R1` (default: each task's primary metric)."""
    protocol: str = ""
    """The only protocol shown (default: every one under which a test split was scored)."""
    recipes: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """The only recipes whose runs are shown."""
    aggregators: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """The only ones shown and corrected for, such as `gpo "kmax(k=2)"`; choose them before you see their scores."""
    significance: bool = True
    """Mark significant differences from the best; reads the per-query results of all runs."""
    pairs: bool = False
    """Show the difference of every two aggregators, too."""
    detect: float = 0.0
    """Show how many more seeds a difference of the primary metric of this size needs; 0 for none."""
    out: Path | None = None
    """File for the numbers and their origin (runs, commits, digests, commands): .csv or .parquet; FILE#NAME writes one
    of several tables in a file."""
    markdown: Path | None = None
    """File for the tables as Markdown."""
    latex: Path | None = None
    """File for the tables as LaTeX, with booktabs."""
    log: bool = True
    """Record the tables and figures in an MLflow run of their own."""


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    """Renew the tables in Markdown files from the results that they name."""

    files: tyro.conf.Positional[tuple[Path, ...]] = (Path("README.md"),)
    """Markdown files."""
    check: bool = False
    """Write nothing, and exit with 1 if a table is not current."""


def renew_tables(words: Sequence[str]) -> None:
    options = tyro.cli(TablesOptions, args=words, prog="polypool compare tables")
    from polypool.pipelines.comparison.documents import renew

    stale = False
    for line in renew(options.files, check=options.check):
        print(line + ("" if options.check else ", and is renewed"))
        stale = True
    if options.check and stale:
        print(f"`polypool compare tables {' '.join(map(str, options.files))}` renews them")
        sys.exit(1)


@command
def main() -> None:
    if sys.argv[1:2] == ["tables"]:
        return renew_tables(sys.argv[2:])
    options = tyro.cli(CompareOptions, prog="polypool compare", description=__doc__)
    from polypool.infra.tracking import to_see, tracking_uri
    from polypool.pipelines.comparison.comparison import compare, refuse_detect
    from polypool.pipelines.comparison.result_files import refuse_ending, write_results

    refuse_detect(options.detect)
    if options.out is not None:
        refuse_ending(options.out)
    for name in ("out", "markdown", "latex"):
        if (path := getattr(options, name)) is not None:
            local(path, what=f"the file of --{name}")
    uri = tracking_uri(home())
    comparison = compare(
        uri,
        options.experiment,
        metric=options.metric,
        protocol=options.protocol,
        recipes=options.recipes,
        aggregators=options.aggregators,
        significance=options.significance,
    )
    comparison = replace(comparison, pairs=options.pairs, detect=options.detect)
    print(comparison.text(), end="\n\n")
    for path, text in ((options.markdown, comparison.markdown), (options.latex, comparison.latex)):
        if path is not None:
            make_folder(path.parent)
            with atomic(path) as file:
                file.write(text().encode())
            print(f"written to {path}")
    if options.out is not None:
        write_results(comparison.results, options.out)
        print(f"written to {options.out}")
    if options.log:
        run_id = comparison.log(uri, folder=home())
        print(f"kept with figures in run {run_id} of {comparison.kept_in!r}")
    print(f"to see all runs: {to_see(uri, options.experiment)}")
