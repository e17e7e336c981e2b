"""Recorded runs: what is read of them, their files, and how those of an experiment are found.

MLflow's own search makes an object of every parameter, tag and metric: for 2,000 runs it takes four seconds, after two
of imports. Results cannot be cached, as a run can change at any time without a trace. So the tables of a SQLite file
are read with four queries if they have the expected columns, and MLflow is used if not.
"""

from __future__ import annotations

import difflib
import math
import re
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from polypool.infra.errors import AbsentError, InputError, unknown
from polypool.infra.process.memory import no_collection
from polypool.infra.tracking.location import connect, database_file, explained, opening

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as MlflowRun

T = TypeVar("T")

HOME = "home"
"""Tag: the project's home on the machine that started a run, below which most of its paths are."""
JOINT = "joint"
"""Tag of the run of one of several tasks that were trained together: the joint run."""
_PAGE = 1000
_COLUMNS = {
    "experiments": "experiment_id name artifact_location lifecycle_stage creation_time last_update_time workspace",
    "runs": "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version "
    "lifecycle_stage artifact_uri experiment_id deleted_time",
    "tags": "key value run_uuid",
    "params": "key value run_uuid",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
}
"""Those of MLflow up to 3.18; tables with other columns may have another meaning."""
_WORKSPACE = "default"
_PATIENCE = 5.0  # seconds that another process may be writing


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as it is recorded.

    Times are seconds since 1970, metrics the last values; `artifacts` is the URI of the folder of its files.
    """

    run_id: str
    name: str
    status: str
    started: float
    ended: float | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    artifacts: str = ""

    @property
    def settings(self) -> dict[str, str]:
        """Its params, with paths below the home of its machine relative to it."""
        home = self.tags.get(HOME)
        below = re.compile(rf"(?<![\w/]){re.escape(home)}/") if home else None
        return {name: below.sub("", value) if below else value for name, value in self.params.items()}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data that a run reads, one of MLflow's inputs of a run.

    MLflow takes each pair of name and digest once per run.

    Attributes:
        name: shown in the UI.
        digest: of the content, such as a SHA-256.
        place: folder or URL, as in the run's settings.
        context: `train`, `val` or `test`, or what all of them read, such as `features`.
        profile: counts, such as `{"images": 1000}`.
    """

    name: str
    digest: str
    place: str
    context: str
    profile: Mapping[str, int] = field(default_factory=dict)


def find_runs(uri: str, experiment: str, *, finished: bool = True) -> list[RunRecord]:
    """Return the runs of an experiment, latest first.

    Args:
        uri: the store.
        experiment: its name.
        finished: only those with the status FINISHED.

    Raises:
        InputError: the store does not answer, or the experiment was deleted.
        AbsentError: there is no such store or experiment (the message lists the choices).
    """
    if (path := database_file(uri)) is not None:
        with opening(uri, create=False):
            found = read_runs(path, experiment, finished=finished)
        if found is not None:
            return found
    client = connect(uri)
    with explained(uri), no_collection():
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
    return [
        RunRecord(
            run_id=run.info.run_id,
            name=run.info.run_name or "",
            status=run.info.status,
            started=run.info.start_time / 1000,
            ended=_ended(run.info.end_time, run.info.status),
            tags=run.data.tags,
            params=run.data.params,
            metrics=run.data.metrics,
            artifacts=run.info.artifact_uri,
        )
        for run in runs
    ]


def _ended(time: int | None, status: str) -> float | None:
    return time / 1000 if time and status != "RUNNING" else None


def read_runs(path: Path, experiment: str, *, finished: bool) -> list[RunRecord] | None:
    """Return the runs of an experiment in a SQLite file, latest first, as of one moment.

    Returns:
        None if MLflow must be used: for an unknown or deleted experiment, other tables, or an unreadable file.
    """

    def read(database: sqlite3.Connection) -> list[RunRecord] | None:
        ids = _experiment(database, experiment)
        return None if ids is None else _runs(database, ids, finished=finished)

    with no_collection():
        return _read(path, read)


def read_experiment(path: Path, name: str) -> tuple[str, dict[str, str]] | None:
    """Return the id and the tags of an experiment in a SQLite file; None as in `read_runs`."""

    def read(database: sqlite3.Connection) -> tuple[str, dict[str, str]] | None:
        if (ids := _experiment(database, name)) is None:
            return None
        tags = database.execute("SELECT key, value FROM experiment_tags WHERE experiment_id = ?", ids)
        return str(ids[0]), dict(tags.fetchall())

    return _read(path, read)


def _read(path: Path, read: Callable[[sqlite3.Connection], T | None]) -> T | None:
    """Read from a SQLite file in one transaction; None if it has other tables or cannot be read."""
    file = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(file, uri=True, timeout=_PATIENCE, isolation_level=None)) as database:
            database.execute("BEGIN")
            for table, columns in _COLUMNS.items():
                found = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
                if found != {*columns.split()}:
                    return None
            # MLflow refuses a file with several unless told which one
            workspaces = {*database.execute("SELECT DISTINCT workspace FROM experiments")}
            return read(database) if workspaces == {(_WORKSPACE,)} else None
    except sqlite3.Error:
        return None


def _experiment(database: sqlite3.Connection, name: str) -> tuple[Any] | None:
    query = "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = 'active'"
    return database.execute(query, (name,)).fetchone()


def _runs(database: sqlite3.Connection, ids: tuple[Any], *, finished: bool) -> list[RunRecord]:
    chosen = "FROM runs WHERE experiment_id = ? AND lifecycle_stage = 'active'"
    chosen += " AND status = 'FINISHED'" if finished else ""

    def of_runs(table: str, value: str = "value") -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        rows = f"SELECT run_uuid, key, {value} FROM {table} WHERE run_uuid IN (SELECT run_uuid {chosen})"
        for run, key, held in database.execute(rows, ids):
            found[run][key] = held
        return found

    tags, params = of_runs("tags"), of_runs("params")
    metrics = of_runs("latest_metrics", "CASE WHEN is_nan THEN NULL ELSE value END")
    columns = f"run_uuid, name, status, start_time, end_time, artifact_uri {chosen}"
    return [
        RunRecord(
            run_id=run,
            name=name or tags[run].get("mlflow.runName", ""),
            status=status,
            started=start / 1000,
            ended=_ended(end, status),
            tags=tags[run],
            params=params[run],
            metrics={key: math.nan if x is None else x for key, x in metrics[run].items()},
            artifacts=artifacts,
        )
        for run, name, status, start, end, artifacts in database.execute(
            f"SELECT {columns} ORDER BY start_time DESC, run_uuid", ids
        )
    ]


def refuse_deleted(experiment: Experiment | None, uri: str) -> None:
    """Raise InputError for an experiment that was deleted; None is one that does not exist."""
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise InputError(
            f"experiment {experiment.name!r} of {uri} was deleted; use another name, or restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
        )


LATEST = "latest"
"""Names the run that was begun last, of those that were trained."""
_ID = re.compile(r"[0-9a-f]{32}")
_MOST = 8  # runs that a message lists


def resolve_run(uri: str, named: str) -> str:
    """Return the id of the run that a user names: by its id, a beginning of it, its name, or `LATEST`.

    Raises:
        InputError: nothing is named, there is no such run, or there are several; the message lists runs to choose from.
    """
    if _ID.fullmatch(named):
        return named
    client = connect(uri)
    if named == LATEST:
        trained = _search(client, uri, "tags.kind = 'train'")
        found = [run for run in trained if JOINT not in run.data.tags][:1]
    else:
        quote = '"' if "'" in named else "'"
        filters = [f"attributes.run_id LIKE '{named}%'"] if re.fullmatch("[0-9a-f]+", named) else []
        filters += [f"attributes.run_name = {quote}{named}{quote}"] if named and quote not in named else []
        found = [run for text in filters for run in _search(client, uri, text)]
    if not found:
        raise unknown_run(client, uri, named)
    if len(found) > 1:
        raise InputError(
            f"{named!r} means {len(found)} runs at {uri}; write more of the id of one:{_listed(found)}"
        )
    return found[0].info.run_id


def _search(client: MlflowClient, uri: str, text: str = "") -> Sequence[MlflowRun]:
    """Return at most `_PAGE` runs of all experiments, latest first."""
    with explained(uri):
        experiments = [each.experiment_id for each in client.search_experiments()]
        return client.search_runs(
            experiments, text, order_by=["attributes.start_time DESC"], max_results=_PAGE
        )


def _listed(runs: Sequence[MlflowRun]) -> str:
    """Return runs for a message, a line each."""
    more = f"\n  and {len(runs) - _MOST} more" if len(runs) > _MOST else ""
    return "".join(f"\n  {run.info.run_id}  {run.info.run_name}" for run in runs[:_MOST]) + more


def unknown_run(client: MlflowClient, uri: str, named: str) -> InputError:
    """Return the error for an unknown run or an empty name, which lists the nearest runs, or else the latest."""
    runs = {run.info.run_id: run for run in _search(client, uri)}
    nearest = [known for known in runs if named and known.startswith(named)]
    nearest = nearest or difflib.get_close_matches(named, runs, n=3, cutoff=0.6)
    listed = _listed([runs[known] for known in nearest or [*runs][:5]]) or " none"
    what = (
        f"no run {named!r} at {uri}"
        if named
        else f"no run is named: give an id, its beginning, or {LATEST!r}"
    )
    return InputError(f"{what}. The {'nearest' if nearest else 'latest'} runs:{listed}")


@lru_cache(maxsize=64)
def folder_at(artifact_uri: str) -> Path | None:
    """Return the folder of a run's artifacts; None if a server keeps them."""
    root = urlparse(artifact_uri)
    return Path(unquote(root.path)) if root.scheme == "file" else None


class Artifacts:
    """The files of many runs, over one connection. Copies of a server's files are removed with this object.

    Args:
        uri: the store of the runs.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def path(self, run: RunRecord, name: str) -> Path:
        """Return the path of a run's artifact.

        Raises:
            AbsentError: there is none.
            InputError: the server does not answer.
        """
        missing = AbsentError(f"run {run.run_id} has no artifact {name}")
        if (folder := folder_at(run.artifacts)) is not None:
            if not (folder / name).is_file():
                raise missing
            return folder / name
        from mlflow.exceptions import MlflowException

        target = Path(self._copies.name) / run.run_id
        target.mkdir(exist_ok=True)
        with explained(self.uri):
            try:
                return Path(self._client.download_artifacts(run.run_id, name, str(target)))
            except MlflowException:
                # which of its many errors means that there is no such file depends on the server
                beside = self._client.list_artifacts(run.run_id, name.rpartition("/")[0] or None)
                if name in [item.path for item in beside]:
                    raise
                raise missing from None

    @cached_property
    def _client(self) -> MlflowClient:
        return connect(self.uri)

    @cached_property
    def _copies(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="polypool-artifacts-")
