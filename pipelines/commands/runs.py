"""`polypool runs`: List the runs of an experiment, the best of each task first, and their training processes.

Verbs accept a run's id, a unique prefix of it (such as the one shown), its name (`train --name`), or `latest`. Scores
are comparable within one data set and protocol; `compare` tests the differences.

A run that MLflow shows as running may have lost its process: `--mark-dead` ends such runs as KILLED, after sending what
MLflow lacks of their logs. A run whose folder is not on this machine is not changed.

`polypool runs archive --out FILE.parquet` writes the data that `compare` reads of finished runs to a file, for
`compare --archives FILE.parquet` on any machine. `runs archive --archives FILE.parquet --out FILE.parquet` extends it.
"""

from __future__ import annotations

import json as json_format
import sys
import tempfile
from pathlib import Path
from typing import Annotated

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
        mark_dead: end the runs without a training process as KILLED.
        json: print JSON, one object per run.
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
    archives: Annotated[tuple[Path, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = (),
    choice: tyro.conf.OmitArgPrefixes[Choice] = ALL,
) -> None:
    """Write the scores, settings and per-query results of finished runs to a file.

    Args:
        out: the file, .parquet; may be one of `archives`, which is then extended.
        experiment: MLflow experiment.
        archives: files of `polypool runs archive`, whose runs are added to the experiment's.
        choice: filters of runs.
    """
    from polypool.infra.tracking import Artifacts
    from polypool.pipelines.comparison.archives import refuse_ending, write_archive
    from polypool.pipelines.comparison.comparison import with_archives

    refuse_ending(local(out, what="the file of --out"))
    uri = tracking_uri(home())
    with tempfile.TemporaryDirectory(prefix="polypool-archives-") as unpacked:
        found, notes = with_archives(uri, experiment, archives, Path(unpacked))
        runs = choice.of(found)
        written = write_archive(runs, Artifacts(uri), out)
    for note in notes:
        print(note)
    rest = f"; {len(runs) - written} not finished and left out" if written < len(runs) else ""
    print(f"{written} runs written to {out}{rest}")
    print_next(("compare them, also elsewhere", ("compare", "--archives", str(out))))


@command
def main() -> None:
    if sys.argv[1:2] == ["archive"]:
        tyro.cli(archive, args=sys.argv[2:], prog="polypool runs archive")
    else:
        tyro.cli(show, prog="polypool runs", description=__doc__)
