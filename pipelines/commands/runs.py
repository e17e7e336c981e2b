"""`polypool runs`: List the runs of an experiment, the best of each task first, and the processes that train them.

Verbs take a run by its id, the beginning that is shown or any other that no other run has, its name (`train --name`),
or `latest`. Scores of one data set and protocol can be compared; `compare` says which differences mean something.

A run that MLflow shows as running may have lost its process: `--mark-dead` ends those as KILLED, after sending what
they logged and MLflow lacks. A run whose folder is not on this machine stays as it is.

`polypool runs archive --out FILE.parquet` writes what `compare` reads of finished runs to a file, from which `compare
--archives FILE.parquet` reads it on any machine.
"""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path

import tyro

from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.infra.storage import local
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.comparison.choice import ALL, Choice


def show(*, experiment: str = "polypool", mark_dead: bool = False, json: bool = False) -> None:
    """List the runs of an experiment.

    Args:
        experiment: MLflow experiment.
        mark_dead: end as KILLED the runs that no process trains any more.
        json: print JSON, an object for each run.
    """
    from polypool.pipelines.comparison import runs as listing

    uri = tracking_uri(home())
    runs = listing.list_runs(uri, experiment, home=home())
    if mark_dead:
        ended = listing.mark_dead(uri, runs, home=home())
        runs = listing.list_runs(uri, experiment, home=home()) if ended else runs
        if not json:
            lines = [f"run {run_id}: no process trains it, now {state}" for run_id, state in ended.items()]
            print("\n".join(lines or ["no dead run was found"]), end="\n\n")
    if json:
        print(json_format.dumps(runs, indent=1))
    else:
        print(listing.run_table(runs) if runs else f"experiment {experiment!r} has no trained runs")


def archive(
    *,
    out: Path,
    experiment: str = "polypool",
    choice: tyro.conf.OmitArgPrefixes[Choice] = ALL,
) -> None:
    """Write the scores, settings and results of single queries of finished runs to a file.

    Args:
        out: the file, .parquet.
        experiment: MLflow experiment.
        choice: which runs are written.
    """
    from polypool.infra.tracking import Artifacts
    from polypool.pipelines.comparison.archives import refuse_ending, write_archive
    from polypool.pipelines.comparison.comparison import runs_of

    refuse_ending(local(out, what="the file of --out"))
    uri = tracking_uri(home())
    runs = choice.of(runs_of(uri, experiment))
    written = write_archive(runs, Artifacts(uri), out)
    rest = f"; {len(runs) - written} not finished and left out" if written < len(runs) else ""
    print(f"{written} runs written to {out}{rest}")
    print_next(("compare them, also elsewhere", ("compare", "--archives", str(out))))


@command
def main() -> None:
    if sys.argv[1:2] == ["archive"]:
        tyro.cli(archive, args=sys.argv[2:], prog="polypool runs archive")
    else:
        tyro.cli(show, prog="polypool runs", description=__doc__)
