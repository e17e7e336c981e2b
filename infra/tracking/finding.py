"""The runs that a store has: those of an experiment, and the ones nearest to an id that is none."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from infra.errors import AbsentError, InputError, unknown
from infra.process.garbage import without_search
from infra.tracking.database import read_runs
from infra.tracking.location import connect, database_file, explained, opening
from infra.tracking.record import RunRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

_PAGE = 1000


def find_runs(uri: str, experiment: str, *, finished: bool = True) -> list[RunRecord]:
    """Return the runs of an experiment, latest first.

    Args:
        uri: the store.
        experiment: its name.
        finished: only those that ended well.

    Raises:
        InputError: the store does not answer, or the experiment was deleted.
        AbsentError: there is no such store or experiment (the message lists those there are).
    """
    if (path := database_file(uri)) is not None:
        with opening(uri, create=False):
            found = read_runs(path, experiment, finished=finished)
        if found is not None:
            return found
    client = connect(uri)
    with explained(uri), without_search():
        known = {each.name: each.experiment_id for each in client.search_experiments()}
        if experiment not in known:
            refuse_deleted(client.get_experiment_by_name(experiment), uri)
            raise AbsentError(str(unknown("experiment", experiment, known, f" They are those of {uri}.")))
        runs, token = [], ""
        while token is not None:
            page = client.search_runs(
                [known[experiment]],
                filter_string="attributes.status = 'FINISHED'" if finished else "",
                order_by=["attributes.start_time DESC"],
                max_results=_PAGE,
                page_token=token or None,
            )
            runs += page
            token = page.token or None
    return [_record(run) for run in runs]


def _record(run: Any) -> RunRecord:
    info, data = run.info, run.data
    return RunRecord(
        run_id=info.run_id,
        name=info.run_name or "",
        status=info.status,
        started=info.start_time / 1000,
        ended=info.end_time / 1000 if info.end_time and info.status != "RUNNING" else None,
        tags=data.tags,
        params=data.params,
        metrics=data.metrics,
        artifacts=info.artifact_uri,
    )


def refuse_deleted(experiment: Experiment | None, uri: str) -> None:
    """Raise InputError for an experiment that was deleted; None is one that is not there."""
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise InputError(
            f"experiment {experiment.name!r} of {uri} was deleted; use another name, or bring it back with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
        )


def unknown_run(client: MlflowClient, uri: str, run_id: str) -> InputError:
    """Return the error for a run that is not there: it lists the nearest ids, or else the latest runs."""
    with explained(uri):
        experiments = [each.experiment_id for each in client.search_experiments()]
        runs = client.search_runs(experiments, order_by=["attributes.start_time DESC"], max_results=1000)
    names = {run.info.run_id: run.info.run_name for run in runs}
    nearest = [known for known in names if run_id and known.startswith(run_id)]
    nearest = nearest or difflib.get_close_matches(run_id, names, n=3, cutoff=0.6)
    listed = "".join(f"\n  {known}  {names[known]}" for known in (nearest or list(names))[:5])
    which = "The nearest" if nearest else "The latest"
    return InputError(f"no run {run_id!r} at {uri}. {which} runs:{listed or ' none'}")
