"""`python -m pipelines.compare --experiment NAME`: tables and figures from the runs of an experiment.

A table for each task, data set and protocol, which never share one; our numbers beside published ones; which
differences are significant, over seeds and queries and corrected for how many pairs there are; what more seeds would
show; what the aggregators cost; and, over several tasks or data sets, task x aggregator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from infra.errors import command
from infra.files import atomic, make_folder
from infra.paths import home
from infra.storage.places import local


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What to compare."""

    experiment: str = "polypool"
    """MLflow experiment."""
    metric: str = ""
    """What orders the rows and is drawn, such as `i2t/R1`; each task's primary metric where none is given."""
    protocol: str = ""
    """The only protocol shown; where none is given, every one that a test split was scored under."""
    recipes: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """The only ones whose runs are shown."""
    aggregators: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """The only ones shown and corrected for, such as `gpo "kmax(k=2)"`; choose them before you see their scores."""
    significance: bool = True
    """Say which differences from the best are significant; reads the per-query results of all runs."""
    pairs: bool = False
    """Show the difference of every two aggregators, too."""
    detect: float = 0.0
    """A difference of the primary metric, of which to say how many more seeds it needs; 0 for none."""
    out: Path | None = None
    """File for the numbers and what they came from (runs, commits, digests, commands): .csv or .parquet; FILE#NAME is a
    table of that name in a file of several, beside the others."""
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
    from infra.tracking import Artifacts, to_see, tracking_uri
    from infra.tracking.provenance import command_line
    from pipelines.comparison.comparison import compare, judged, refuse_detect
    from pipelines.comparison.result_files import refuse_ending, write_results
    from pipelines.comparison.results import results
    from pipelines.comparison.runs.per_query import read_queries

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
    )
    if options.significance:
        comparison = judged(comparison, partial(read_queries, Artifacts(uri)))
    comparison = replace(comparison, pairs=options.pairs, detect=options.detect)
    print(comparison.text(), end="\n\n")
    for path, text in ((options.markdown, comparison.markdown), (options.latex, comparison.latex)):
        if path is not None:
            _write(path, text)
    if options.out is not None:
        write_results(results(comparison.groups, compared_by=command_line()), options.out)
        print(f"written to {options.out}")
    if options.log:
        run_id = comparison.log(uri, folder=home())
        print(f"kept with figures in run {run_id} of {comparison.kept_in!r}")
    print(f"to see all runs: {to_see(uri, options.experiment)}")


if __name__ == "__main__":
    main()
