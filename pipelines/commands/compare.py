"""`polypool compare --experiment NAME`: Compare the runs of an experiment in tables and figures.

Prints one table (scores, or task x aggregator for several tasks or data sets) and the rows that may be the best over
seeds and queries. `--baseline mean` prints differences from `mean` instead, with simultaneous intervals. `--details`
also prints a table for each task, data set and protocol, our numbers next to published ones, differences, costs, and
the benefit of more seeds.

`polypool compare tables FILES` updates the tables and figures in Markdown files from results written by --out. A table
is enclosed by two comments; the first names a file relative to the Markdown file's folder (FILE#TABLE for one of
several tables; `FILE as text` for a terminal's alignment). A figure of a table, with a panel for each column and the
difference of each row from the best of the others, follows one comment; with `FILE against FILE`, it shows the means
of each aggregator in both:

    <!-- table: docs/results/demo.csv -->
    <!-- end of table -->

    <!-- figure: docs/results/demo.csv -->
    ![Differences from the best](docs/images/demo.png)
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from polypool.infra.errors import AbsentError
from polypool.infra.files import atomic, make_folder
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.infra.storage import local
from polypool.pipelines.comparison.choice import ALL, Choice

if TYPE_CHECKING:
    from polypool.pipelines.comparison import comparison as comparing


def compare(
    *,
    experiment: str = "polypool",
    archives: Annotated[tuple[Path, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = (),
    metric: str = "",
    protocol: str = "",
    choice: tyro.conf.OmitArgPrefixes[Choice] = ALL,
    significance: bool = True,
    baseline: str = "",
    pairs: bool = False,
    detect: float = 0.0,
    out: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
    details: bool = False,
    log: bool = False,
) -> None:
    """Compare the runs of an experiment.

    Args:
        experiment: MLflow experiment.
        archives: files of `polypool runs archive`, whose runs are added to the experiment's.
        metric: metric for sorting and figures, such as `i2t/R1` (default: each task's primary metric).
        protocol: show only this protocol (default: every protocol with scores of a test split).
        choice: filters of runs.
        significance: mark the rows that may be the best; reads the per-query results of all runs.
        baseline: row or aggregator, such as `mean`: show the difference of all others from it, p of being the best,
            seeds, rank, costs and, after tuning, trials and chosen settings.
        pairs: show the differences of all pairs of rows, corrected for multiple comparisons.
        detect: show the number of seeds needed to detect this difference of the primary metric; 0 for none.
        out: file for the numbers with their origin (runs, commits, digests, commands): .csv or .parquet; FILE#NAME for
            one of several tables in a file.
        markdown: file for the tables as Markdown.
        latex: file for the tables as LaTeX, with booktabs.
        details: print all tables and notes.
        log: log the tables and figures in a separate MLflow run.
    """
    from polypool.infra.tracking import tracking_uri
    from polypool.pipelines.comparison import comparison as comparing

    comparing.refuse_detect(detect)
    _refuse_files(out=out, markdown=markdown, latex=latex)
    uri = tracking_uri(home())
    comparison = comparing.compare(
        uri,
        experiment,
        archives=archives,
        metric=metric,
        protocol=protocol,
        choice=choice,
        significance=significance,
        baseline=baseline,
        pairs=pairs,
        detect=detect,
    )
    print(comparison.text(details=details), end="\n\n")
    _write(comparison, out=out, markdown=markdown, latex=latex)
    if log:
        run_id = comparison.log(uri).run_id
        print(f"logged with figures in run {run_id} of {comparison.log_experiment!r}")
    _print_next(comparison, uri)


def _print_next(comparison: comparing.Comparison, uri: str) -> None:
    from polypool.infra.tracking import to_see
    from polypool.pipelines.models.next_steps import asking

    best = comparison.best_run
    steps = asking(uri, best) if best else []
    with suppress(AbsentError):  # all runs are archived ones
        steps.append(to_see(uri, comparison.experiment))
    print_next(*steps)


def _refuse_files(**files: Path | None) -> None:
    """Refuse URLs and unknown endings of output files before reading any input; messages name the options."""
    from polypool.pipelines.comparison.results import refuse_ending

    if files["out"] is not None:
        refuse_ending(files["out"])
    for name, file in files.items():
        if file is not None:
            local(file, what=f"the file of --{name}")


def _write(
    comparison: comparing.Comparison, *, out: Path | None, markdown: Path | None, latex: Path | None
) -> None:
    from polypool.pipelines.comparison.results import write_results

    for path, text in ((markdown, comparison.markdown), (latex, comparison.latex)):
        if path is not None:
            make_folder(path.parent)
            with atomic(path) as file:
                file.write(text().encode())
            print(f"written to {path}")
    if out is not None:
        write_results(comparison.results, out)
        print(f"written to {out}")


def tables(
    files: tyro.conf.Positional[tuple[Path, ...]] = (Path("README.md"),), *, check: bool = False
) -> None:
    """Update the tables and figures in Markdown files from the result files that they name.

    Args:
        files: Markdown files.
        check: write nothing, and exit with 1 if a table is outdated.
    """
    from polypool.pipelines.comparison.documents import renew

    stale = False
    for line in renew(files, check=check):
        print(line + ("" if check else ", and is renewed"))
        stale = True
    if check and stale:
        print(f"`polypool compare tables {' '.join(map(str, files))}` renews them")
        sys.exit(1)


@command
def main() -> None:
    if sys.argv[1:2] == ["tables"]:
        tyro.cli(tables, args=sys.argv[2:], prog="polypool compare tables")
    else:
        tyro.cli(compare, prog="polypool compare", description=__doc__)
