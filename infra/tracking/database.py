"""All runs of an experiment from the SQLite file that MLflow keeps them in, with four queries.

MLflow's own search makes an object of every parameter, tag and metric: of 2,000 runs it takes four seconds of a
processor, after two of imports. Nothing of an earlier answer may be kept instead, since a run can get tags, scores and
another name, or be deleted, at any time, and MLflow notes no time of that which it could be asked for. So the tables
themselves are read, as long as they have the columns that are known here, and MLflow is asked where they have not.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from infra.process.garbage import without_search
from infra.tracking.record import RunRecord

_COLUMNS = {
    "experiments": "experiment_id name artifact_location lifecycle_stage creation_time last_update_time workspace",
    "runs": "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version "
    "lifecycle_stage artifact_uri experiment_id deleted_time",
    "tags": "key value run_uuid",
    "params": "key value run_uuid",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
}
"""Those of MLflow 3.17, as of those before it; what has others may mean something else."""
_WORKSPACE = "default"
_PATIENCE = 5.0  # seconds that another process may be writing


def read_runs(path: Path, experiment: str, *, finished: bool) -> list[RunRecord] | None:
    """Return the runs of an experiment, latest first, as they were at one moment.

    Args:
        path: of the SQLite file, which exists.
        experiment: its name.
        finished: only those that ended well.

    Returns:
        None where MLflow is to be asked: about an experiment that is not there or was deleted, a file with other tables
        than those known here, or one that cannot be read.
    """
    try:
        file = f"{path.absolute().as_uri()}?mode=ro"
        with (
            without_search(),
            closing(sqlite3.connect(file, uri=True, timeout=_PATIENCE, isolation_level=None)) as database,
        ):
            database.execute("BEGIN")
            return _runs(database, experiment, finished=finished) if _is_known(database) else None
    except sqlite3.Error:
        return None


def read_experiment(path: Path, name: str) -> tuple[str, dict[str, str]] | None:
    """Return the id and the tags of an experiment; None where MLflow is to be asked, as of `read_runs`."""
    try:
        file = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(file, uri=True, timeout=_PATIENCE)) as database:
            if not _is_known(database):
                return None
            rows = database.execute(
                "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = 'active'", (name,)
            ).fetchall()
            if not rows:
                return None
            tags = database.execute(
                "SELECT key, value FROM experiment_tags WHERE experiment_id = ?", rows[0]
            ).fetchall()
            return str(rows[0][0]), dict(tags)
    except sqlite3.Error:
        return None


def _is_known(database: sqlite3.Connection) -> bool:
    for table, columns in _COLUMNS.items():
        found = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
        if found != {*columns.split()}:
            return False
    # MLflow refuses a file with several unless it is told which one is meant
    return {*database.execute("SELECT DISTINCT workspace FROM experiments")} == {(_WORKSPACE,)}


def _runs(database: sqlite3.Connection, experiment: str, *, finished: bool) -> list[RunRecord] | None:
    ids = database.execute(
        "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = 'active'", (experiment,)
    ).fetchall()
    if not ids:
        return None
    chosen = "FROM runs WHERE experiment_id = ? AND lifecycle_stage = 'active'"
    chosen += " AND status = 'FINISHED'" if finished else ""

    def of_runs(table: str, value: str = "value") -> dict[str, dict[str, Any]]:
        """Return what a table has of each run, by name."""
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        rows = f"SELECT run_uuid, key, {value} FROM {table} WHERE run_uuid IN (SELECT run_uuid {chosen})"
        for run, key, held in database.execute(rows, ids[0]):
            found[run][key] = held
        return found

    tags, params = of_runs("tags"), of_runs("params")
    metrics = of_runs("latest_metrics", "CASE WHEN is_nan THEN NULL ELSE value END")
    return [
        RunRecord(
            run_id=run,
            name=name or tags[run].get("mlflow.runName", ""),
            status=status,
            started=start / 1000,
            ended=end / 1000 if end and status != "RUNNING" else None,
            tags=tags[run],
            params=params[run],
            metrics={key: math.nan if x is None else x for key, x in metrics[run].items()},
            artifacts=artifacts,
        )
        for run, name, status, start, end, artifacts in database.execute(
            f"SELECT run_uuid, name, status, start_time, end_time, artifact_uri {chosen} "
            "ORDER BY start_time DESC, run_uuid",
            ids[0],
        )
    ]
