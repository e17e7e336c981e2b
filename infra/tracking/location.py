"""Tracking stores: the URI, checks before MLflow opens one, and a client of it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from polypool.infra.errors import AbsentError, AwayError, InputError
from polypool.infra.files import make_folder
from polypool.infra.process.progress import waiting

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_PATIENCE = 5  # seconds for a server to answer its first request
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # its 7 take minutes; an outbox retries instead
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def tracking_uri(home: Path) -> str:
    """Return MLFLOW_TRACKING_URI, else a SQLite file in the project's home.

    A relative SQLite path starts at `home`, not at the current folder, which may be a job's temporary one.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    path = database_file(uri)
    return uri if path is None else f"{_SQLITE}{Path(home).absolute() / path}"


def database_file(uri: str) -> Path | None:
    """Return the SQLite file of a store; None for other stores."""
    if not uri.startswith(_SQLITE) or uri in (_SQLITE, f"{_SQLITE}:memory:"):
        return None
    return Path(uri.removeprefix(_SQLITE))


def check_uri(uri: str) -> None:
    """Raise InputError for a folder, which MLflow no longer writes to, a database in memory or an unknown scheme."""
    scheme = uri.partition(":")[0].partition("+")[0] if ":" in uri else ""
    if scheme not in _SCHEMES or uri in ("sqlite://", _SQLITE, f"{_SQLITE}:memory:"):
        database = f"{_SQLITE}/absolute/path/mlflow.db"
        folder = uri.removeprefix("file://") if scheme in ("", "file") else ""
        copied = (
            f"; `mlflow migrate-filestore --source {shlex.quote(folder)} --target {database}` copies its runs"
        )
        raise InputError(
            f"runs cannot be recorded at {uri!r}, which is neither a database file nor a server: unset "
            f"MLFLOW_TRACKING_URI, or set it to {database} or http://host:5000{copied if folder else ''}"
        )


@contextmanager
def opening(uri: str, *, create: bool) -> Iterator[None]:
    """Let one process at a time open a SQLite store, as the first one creates its tables.

    Args:
        uri: the store; nothing is done for a server.
        create: allow a file that does not exist yet.

    Raises:
        InputError: there is no such file, it is no database, or it may not be written.
    """
    path = database_file(uri)
    if path is None:
        yield
        return
    if not (create or path.exists()):
        raise AbsentError(
            f"no runs are recorded: {path} does not exist; train first, or set MLFLOW_TRACKING_URI"
        )
    make_folder(path.parent)
    try:
        held = FileLock(path.with_name(f"{path.name}.lock")).acquire()
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; set MLFLOW_TRACKING_URI") from error
    with held:
        if path.exists():
            _check_sqlite(path)
        yield


def _check_sqlite(path: Path) -> None:
    """Refuse what SQLite cannot read, which MLflow would retry for minutes."""
    try:
        with closing(sqlite3.connect(path, timeout=5)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise InputError(
            f"{path} cannot be read as a database: {error}; move it away, or set MLFLOW_TRACKING_URI"
        ) from error


def connect(uri: str, *, create: bool = False, retries: int = 0) -> MlflowClient:
    """Return a client of a store that has answered, within seconds.

    Args:
        uri: the store.
        create: create a SQLite file that does not exist yet.
        retries: of requests to a server, after 2, 4, 8, ... seconds.
    """
    check_uri(uri)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # logs each attempt
    # this one logs tracebacks of what it raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    patience = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_PATIENCE),
    }
    with opening(uri, create=create), environment(patience), explained(uri):
        client = MlflowClient(uri)
        with waiting(f"MLflow at {uri} to answer"):
            client.search_experiments(max_results=1)
    return client


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for this process and its children, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn what MLflow raises into one clear message."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        reason = str(error).strip().split("\n")[0]
        if "Caused by" not in reason:
            raise InputError(f"MLflow at {uri}: {reason}") from error
        # the rest repeats the address and the class names
        cause = re.sub(r"['\"]\)+$", "", reason.rpartition(": ")[2])
        raise AwayError(
            f"no MLflow server answers at {uri}: {cause}; start it, or set MLFLOW_TRACKING_URI to one that "
            "runs, or unset it to record runs in a file"
        ) from error
