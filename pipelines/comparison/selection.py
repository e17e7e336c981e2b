"""The runs that may be compared: those of an experiment and of archives."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from polypool.infra.errors import AbsentError
from polypool.infra.tracking import RunRecord, find_runs
from polypool.pipelines.comparison.archives import read_archive
from polypool.pipelines.comparison.grouping import is_for_tables


def runs_of(uri: str, experiment: str) -> list[RunRecord]:
    """Return the runs of an experiment that may be compared, finished or not, latest first.

    Raises:
        AbsentError: there is no such experiment, or it has none.
        InputError: the store does not answer.
    """
    runs = [run for run in find_runs(uri, experiment, finished=False) if is_for_tables(run)]
    if not runs:
        raise AbsentError(
            f"experiment {experiment!r} of {uri} has no runs to compare; train some: "
            f"polypool train RECIPE --experiment {shlex.quote(experiment)}"
        )
    return runs


def with_archives(
    uri: str, experiment: str, archives: Sequence[Path], unpacked: Path
) -> tuple[list[RunRecord], list[str]]:
    """Return the runs of an experiment and of archives, each once, and notes on where they are from.

    Args:
        uri: the tracking store.
        experiment: its name; one without runs is noted where there are archives.
        archives: their files.
        unpacked: folder for files of archived runs, which must stay until they are compared.

    Raises:
        InputError: the experiment has no runs and there are no archives, or an archive cannot be read.
    """
    archived = {path: read_archive(path, unpacked) for path in archives}
    notes = [f"{len(runs)} runs are from {path}" for path, runs in archived.items()]
    own: list[RunRecord] = []
    try:
        own = runs_of(uri, experiment)
    except AbsentError:
        if not archives:
            raise
        notes.append(f"experiment {experiment!r} of {uri} has no runs to compare with them")
    known = {run.run_id for run in own}
    others = {run.run_id: run for run in chain(*archived.values()) if run.run_id not in known}
    return [*own, *others.values()], notes
