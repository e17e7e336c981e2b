"""`python -m pipelines.compare --experiment NAME`: tables and figures from the runs of an experiment.

A table for each task, data set and protocol, which never share one; our numbers beside published ones; which
differences are significant, by a paired bootstrap on per-query results; what the aggregators cost; and, over several
tasks or data sets, task x aggregator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tyro

from infra.errors import command
from infra.files import atomic, make_folder
from infra.paths import home


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What to compare."""

    experiment: str = "polypool"
    """MLflow experiment."""
    metric: str = ""
    """What orders the rows and is drawn, such as `i2t/R1`; each task's primary metric where none is given."""
    protocol: str = ""
    """The only protocol shown; where none is given, every one that a test split was scored under."""
    bootstrap: bool = True
    """Say which differences from the best are significant; reads the per-query results of all runs."""
    pairs: bool = False
    """Show the difference of every two aggregators, too."""
    markdown: Path | None = None
    """File for the tables as Markdown."""
    latex: Path | None = None
    """File for the tables as LaTeX, with booktabs."""
    log: bool = True
    """Keep the tables and figures in MLflow, in a run of their own."""


def _write(path: Path, text: Callable[[], str]) -> None:
    make_folder(path.parent)
    with atomic(path) as file:
        file.write(text().encode())
    print(f"written to {path}")


@command
def main() -> None:
    """Compare, print, and keep the result."""
    options = tyro.cli(CompareOptions, prog="python -m pipelines.compare", description=__doc__)
    from infra.tracking import tracking_uri, ui_command
    from pipelines.comparison.comparison import compare, with_bootstrap
    from pipelines.comparison.runs.per_query import read_queries

    uri = tracking_uri(home())
    comparison = compare(uri, options.experiment, metric=options.metric, protocol=options.protocol)
    if options.bootstrap:
        comparison = with_bootstrap(comparison, partial(read_queries, uri))
    comparison = replace(comparison, pairs=options.pairs)
    print(comparison.text(), end="\n\n")
    for path, text in ((options.markdown, comparison.markdown), (options.latex, comparison.latex)):
        if path is not None:
            _write(path, text)
    if options.log:
        run_id = comparison.log(uri, folder=home())
        print(f"kept with figures in run {run_id} of {options.experiment!r}")
    print(f"to see all runs: {ui_command(uri)}")


if __name__ == "__main__":
    main()
