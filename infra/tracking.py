"""Tracking of runs in MLflow, by its client: starting, continuing and finding runs, logging, and models.

Everything goes through a client and a run id, without MLflow's active run and automatic logging, so that another
process or a restart can continue a run by its id.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import logging
import os
import platform
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlparse

from filelock import FileLock

from polypool.infra.errors import AbsentError, AwayError, InputError, unknown
from polypool.infra.extras import needed
from polypool.infra.files import make_folder, read_json
from polypool.infra.process.output import Step
from polypool.infra.process.progress import waiting

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as MlflowRun

HOME = "home"
"""Tag: the project's home on the machine that started a run; most paths of the run are below it."""
JOINT = "joint"
"""Tag of a run that was trained jointly with others: the id of the joint run."""
COMMAND = "command"
"""Tag: the command line that started a run; empty for Python."""
NOTE = "mlflow.note.content"
"""Tag: a run's description, Markdown that the UI shows."""
PARENT = "mlflow.parentRunId"
"""Tag: the parent of a run, under which the UI shows it."""
LATEST = "latest"
"""Name of the latest trained run."""
COMMIT = "POLYPOOL_COMMIT"
"""Environment variable: the commit of code that was copied without its `.git`, to a cluster or into an image."""
PACKAGES = ("torch", "numpy", "transformers", "pyarrow", "ray", "mlflow")
"""Packages whose versions may change results."""

# limits of MLflow, and names of its tags
DIGEST_LENGTH, PARAM_LENGTH, PARAMS_AT_ONCE, METRICS_AT_ONCE = 36, 6000, 100, 1000
NOTE_LENGTH = 5000  # characters of a description in older stores
DATASET_CONTEXT, MODEL_VERSIONS = "mlflow.data.context", "mlflow.modelVersions"
_LONG_PARAMS = "long_params.json"
_SHOWN = 200  # characters of a parameter that is too long
_PAGE = 1000

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
Point = tuple[str, float, int, int]
"""A metric's name, value, time of logging (milliseconds since 1970), and step."""

# --- the store

_SQLITE = "sqlite:///"
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_PATIENCE = 5  # seconds for a server to answer its first request
_SHORT = threading.Lock()  # timeouts are environment variables: one thread at a time shortens them
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # MLflow's 7 take minutes; a `Sender` sends again later
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
    return f"{_SQLITE}{Path(home).absolute() / path}" if (path := uri.removeprefix(_SQLITE)) != uri else uri


def connect(uri: str, *, create: bool = False, retries: int = 0) -> MlflowClient:
    """Return a client of a store that answered within seconds.

    One process at a time opens a SQLite store, as the first one creates its tables.

    Args:
        uri: the store.
        create: create a SQLite file that does not exist yet.
        retries: of requests to a server, after 2, 4, 8, ... seconds.

    Raises:
        AbsentError: the SQLite file does not exist, and `create` is False.
        InputError: a folder (which MLflow no longer writes to), a database in memory or an unknown scheme; the file is
            not a database or not writable; the store does not answer.
    """
    scheme = uri.partition(":")[0].partition("+")[0] if ":" in uri else ""
    if scheme not in _SCHEMES or uri in ("sqlite://", _SQLITE, f"{_SQLITE}:memory:"):
        database, folder = f"{_SQLITE}/absolute/path/mlflow.db", uri.removeprefix("file://")
        copied = (
            f"; `mlflow migrate-filestore --source {shlex.quote(folder)} --target {database}` copies its runs"
        )
        raise InputError(
            f"runs cannot be recorded at {uri!r}, which is neither a database file nor a server: unset "
            f"MLFLOW_TRACKING_URI, or set it to {database} or http://host:5000"
            f"{copied if folder and scheme in ('', 'file') else ''}"
        )
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    # MLflow logs tracebacks of what it raises, and urllib3 each attempt
    for name, level in (("mlflow", 40), ("urllib3.connectionpool", 40), ("mlflow.store.db.utils", 50)):
        logging.getLogger(name).setLevel(level)
    short = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_PATIENCE),
    }
    with opening(uri, create=create), explained(uri), waiting(f"MLflow at {uri} to answer"), _SHORT:
        before = {name: os.environ[name] for name in short}
        os.environ.update(short)
        try:
            client = MlflowClient(uri)
            client.search_experiments(max_results=1)
        finally:
            os.environ.update(before)
    return client


@contextmanager
def opening(uri: str, *, create: bool) -> Iterator[None]:
    """Lock a SQLite store, and check that it can be read or created; do nothing for a server."""
    if not uri.startswith(_SQLITE):
        yield
        return
    path = Path(uri.removeprefix(_SQLITE))
    if not (create or path.exists()):
        raise AbsentError(
            f"no runs are recorded: {path} does not exist; train first, or set MLFLOW_TRACKING_URI"
        )
    make_folder(path.parent)
    try:
        lock = FileLock(path.with_name(f"{path.name}.lock")).acquire()
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; set MLFLOW_TRACKING_URI") from error
    with lock:
        if path.exists():
            try:  # MLflow would retry for minutes
                with closing(sqlite3.connect(path, timeout=5)) as connection:
                    connection.execute("PRAGMA schema_version")
            except sqlite3.Error as error:
                raise InputError(
                    f"{path} cannot be read as a database: {error}; move it away, or set MLFLOW_TRACKING_URI"
                ) from error
        yield


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Convert errors of MLflow into an InputError with one message."""
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


# --- experiments

_VIEW = "polypool"
_VIEW_TAG = f"mlflow.sharedViewState.{_VIEW}"
_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    # all runs in one list, by the metric that all tasks have; the UI applies it by its name in the address
    _VIEW_TAG: json.dumps(
        {
            "searchFilter": "tags.kind != 'sweep'",
            "orderByKey": "metrics.`test/chance_normalised`",
            "orderByAsc": False,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "selectedColumns": [
                *(f"metrics.`test/{name}`" for name in ("chance_normalised", "score")),
                *(
                    f"tags.`{name}`"
                    for name in ("task", "dataset", "features", "aggregator", "seed", "protocol")
                ),
                "attributes.`Dataset`",
            ],
        }
    ),
}
_PORT = 5000  # the default of `mlflow ui`


def experiment_id(client: MlflowClient, name: str, *, uri: str, home: Path) -> str:
    """Return the id of an experiment, created if new.

    Args:
        client: of the store.
        name: the experiment's.
        uri: of the store.
        home: artifacts go to its folder `mlartifacts`, unless a server stores them.

    Raises:
        InputError: it was deleted.
    """
    from mlflow.exceptions import MlflowException

    if (experiment := client.get_experiment_by_name(name)) is None:
        folder = None if uri.startswith("http") else (Path(home).absolute() / "mlartifacts").as_uri()
        try:
            return client.create_experiment(name, artifact_location=folder, tags=_TAGS)
        except MlflowException:  # another process was faster
            if (experiment := client.get_experiment_by_name(name)) is None:
                raise
    refuse_deleted(experiment, uri)
    for tag in _TAGS.keys() - experiment.tags.keys():
        client.set_experiment_tag(experiment.experiment_id, tag, _TAGS[tag])
    return experiment.experiment_id


def refuse_deleted(experiment: Experiment | None, uri: str) -> None:
    """Raise InputError for a deleted experiment; None is an unknown one."""
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise InputError(
            f"experiment {experiment.name!r} of {uri} was deleted; use another name, or restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
        )


def to_see(uri: str, experiment: str) -> Step:
    """Return the next step that shows an experiment's runs in a browser: a command, and the address.

    Raises:
        InputError: the store does not answer.
    """
    with explained(uri):
        found = connect(uri).get_experiment_by_name(experiment)
    server = uri.rstrip("/") if uri.startswith("http") else f"http://127.0.0.1:{_PORT}"
    page = f"{server}/#/experiments"
    if found is not None:
        view = f"&viewStateShareKey={_VIEW}" if _VIEW_TAG in found.tags else ""
        page += f"/{found.experiment_id}/runs?workflowType=machine_learning{view}"
    if uri.startswith("http"):
        return "all runs in a browser", ("$open", page)
    return f"all runs in a browser at {page}", ("$mlflow", "ui", "--backend-store-uri", uri)


# --- recorded runs


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A recorded run.

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
        """Its params, with paths below its machine's home made relative."""
        home = self.tags.get(HOME)
        below = re.compile(rf"(?<![\w/]){re.escape(home)}/") if home else None
        return {name: below.sub("", value) if below else value for name, value in self.params.items()}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data that a run reads, an input in MLflow, which accepts each pair of name and digest once per run.

    Attributes:
        name: shown in the UI.
        digest: of the content, such as a SHA-256.
        location: folder or URL, as in the run's settings.
        context: `train`, `val` or `test`, or a source of all of them, such as `features`.
        profile: counts, such as `{"images": 1000}`.
    """

    name: str
    digest: str
    location: str
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
        AbsentError: unknown store or experiment (the message lists the choices).
    """
    client = connect(uri)
    with explained(uri):
        known = {each.name: each.experiment_id for each in client.search_experiments()}
        if experiment not in known:
            refuse_deleted(client.get_experiment_by_name(experiment), uri)
            raise AbsentError(str(unknown("experiment", experiment, known, f" The store is {uri}.")))
        runs, token = [], None
        while token != "":
            page = client.search_runs(
                [known[experiment]],
                filter_string="attributes.status = 'FINISHED'" if finished else "",
                order_by=["attributes.start_time DESC"],
                max_results=_PAGE,
                page_token=token,
            )
            runs += page
            token = page.token or ""
    return [
        RunRecord(
            run_id=run.info.run_id,
            name=run.info.run_name or "",
            status=run.info.status,
            started=run.info.start_time / 1000,
            ended=run.info.end_time / 1000 if run.info.end_time and run.info.status != "RUNNING" else None,
            tags=run.data.tags,
            params=run.data.params,
            metrics=run.data.metrics,
            artifacts=run.info.artifact_uri,
        )
        for run in runs
    ]


_ID = re.compile(r"[0-9a-f]{32}")
_MOST = 8  # runs that a message lists


def resolve_run(uri: str, named: str) -> str:
    """Return the id of the run that a user names by its id, a prefix of it, its name, or `LATEST`.

    A complete id is returned unchecked. `LATEST` skips the members of a joint run.

    Raises:
        InputError: an empty name, an unknown run, or several runs; the message lists runs to choose from.
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
    """Return the error for an unknown run or an empty name; it lists the nearest runs, or else the latest."""
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


@cache
def _copies() -> tempfile.TemporaryDirectory:
    """Return a folder for copies of a server's files, removed at the end of this process."""
    return tempfile.TemporaryDirectory(prefix="polypool-artifacts-", ignore_cleanup_errors=True)


class Artifacts:
    """The files of runs, over one connection.

    Args:
        uri: the store of the runs.
        client: of the store; connects at the first file of a server if None.
    """

    def __init__(self, uri: str, client: MlflowClient | None = None) -> None:
        self.uri, self._client = uri, client

    def path(self, run: RunRecord, name: str) -> Path:
        """Return the path of a run's artifact, as `find` does."""
        return self.find(run.run_id, run.artifacts, name)

    def find(self, run_id: str, root: str, name: str) -> Path:
        """Return the path of an artifact or a folder of artifacts: in the store, or of a copy from a server.

        Args:
            run_id: of the run.
            root: the URI of the folder of its artifacts.
            name: of the artifact, relative to `root`.

        Raises:
            AbsentError: the artifact is missing.
            InputError: the server does not answer.
        """
        missing, url = AbsentError(f"run {run_id} has no artifact {name}"), urlparse(root)
        if url.scheme == "file":
            if not (path := Path(unquote(url.path)) / name).exists():
                raise missing
            return path
        from mlflow.exceptions import MlflowException

        self._client = self._client or connect(self.uri)
        target = make_folder(Path(_copies().name) / run_id)
        with explained(self.uri):
            try:
                return Path(self._client.download_artifacts(run_id, name, str(target)))
            except MlflowException:
                # the error for a missing file depends on the server
                others = self._client.list_artifacts(run_id, name.rpartition("/")[0] or None)
                if name in [item.path for item in others]:
                    raise
                raise missing from None


# --- a run


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """A run to create, continue or read. Every method raises InputError if MLflow refuses or does not answer."""

    uri: str
    run_id: str
    _client: MlflowClient = field(repr=False)

    @classmethod
    def start(
        cls,
        experiment: str,
        *,
        uri: str,
        home: Path,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
    ) -> Tracker:
        """Create a run, and its experiment if new.

        Args:
            experiment: its name.
            uri: the store, as from `tracking_uri`.
            home: artifacts go to its folder `mlartifacts`, unless a server stores them.
            name: of the run.
            tags: commit, versions, the command and the UI's source are added.
            params: nested ones are flattened to `a.b`; those too long for MLflow go to an artifact.

        Raises:
            InputError: the store does not answer or cannot be used.
        """
        client = connect(uri, create=True)
        with explained(uri):
            tags = {COMMAND: command_line(), **tags}
            tags = {HOME: str(home), **provenance(home), **source_tags(tags[COMMAND]), **tags}
            within = experiment_id(client, experiment, uri=uri, home=home)
            run = client.create_run(within, run_name=name, tags=tags)
            tracker = cls(uri=uri, run_id=run.info.run_id, _client=client)
            try:
                tracker.params(params)
            except BaseException:
                tracker.finish("KILLED")
                raise
        return tracker

    @classmethod
    def attach(cls, uri: str, run_id: str, *, running: bool = True) -> Tracker:
        """Continue a run, in another process or after a restart.

        Args:
            uri: the store.
            run_id: the run.
            running: mark it as running again, and retry if the server does not answer; False to read a run or to add
                to a finished one.

        Raises:
            InputError: the run is unknown (the message lists the nearest) or was deleted.
        """
        client = connect(uri, retries=3 if running else 0)
        from mlflow.exceptions import MlflowException

        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            raise unknown_run(client, uri, run_id) from error
        tracker = cls(uri=uri, run_id=run_id, _client=client)
        tracker.refuse_deleted(run)
        if running:
            tracker._call("update_run", status="RUNNING")
        return tracker

    def refuse_deleted(self, run: MlflowRun | None = None) -> None:
        """Raise InputError if the run was deleted, as MLflow then accepts nothing; `run` saves reading it again."""
        if (run or self._call("get_run")).info.lifecycle_stage == "deleted":
            raise InputError(
                f"run {self.run_id} of {self.uri} was deleted; `mlflow runs restore --run-id {self.run_id}` restores it"
            )

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step in one request."""
        now = int(time.time() * 1000)
        self.points([(name, float(x), now, step) for name, x in metrics.items()])

    def points(self, points: Sequence[Point]) -> None:
        """Log numbers of several steps, at most 1,000, in one request."""
        from mlflow.entities import Metric

        self._call("log_batch", metrics=[Metric(*point) for point in points])

    def tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._call("log_batch", tags=[RunTag(name, str(value)) for name, value in tags.items()])

    def inputs(self, sources: Sequence[Source]) -> None:
        """Log the run's data; inputs that were logged before do not change."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    name=source.name,
                    digest=source.digest[:DIGEST_LENGTH],
                    source_type=source.location.partition("://")[0] if "://" in source.location else "local",
                    source=json.dumps({"uri": source.location}),
                    profile=json.dumps(dict(source.profile)) if source.profile else None,
                ),
                tags=[InputTag(DATASET_CONTEXT, source.context)],
            )
            for source in sources
        ]
        if inputs:
            self._call("log_inputs", datasets=inputs)

    def params(self, params: Mapping[str, Any]) -> None:
        """Set parameters as `start` does; parameters cannot be changed."""
        from mlflow.entities import Param

        flat = dict(flattened(params))
        long = {name: value for name, value in flat.items() if len(value) > PARAM_LENGTH}
        if long:
            self.json(_LONG_PARAMS, long)
        rows = [Param(name, _shortened(value) if name in long else value) for name, value in flat.items()]
        for start in range(0, len(rows), PARAMS_AT_ONCE):
            self._call("log_batch", params=rows[start : start + PARAMS_AT_ONCE])

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file, or all files of a folder, in the artifact folder `folder`."""
        self._call("log_artifacts" if path.is_dir() else "log_artifact", str(path), folder or None)

    def text(self, name: str, text: str) -> None:
        """Store text as the artifact `name`."""
        self._call("log_text", text, name)

    def json(self, name: str, obj: Any) -> None:
        """Store plain data as the artifact `name`."""
        self.text(name, json.dumps(obj, indent=1))

    def table(self, name: str, columns: Mapping[str, list[Any]]) -> None:
        """Store or replace a table as the artifact `name`, which ends in `.json`; the UI shows it as a table."""
        if all(item.path != name for item in self._call("list_artifacts")):
            self._call("log_table", dict(columns), name)
            return
        from pandas import DataFrame

        # `log_table` would append to the artifact
        self._call("log_text", DataFrame(dict(columns)).to_json(orient="split", index=False), name)

    def download(self, artifact_path: str) -> Path:
        """Return the path of an artifact or a folder of artifacts: in the store, or of a copy from a server.

        Raises:
            InputError: the run has no such artifact; the message lists its artifacts.
        """
        root = self._call("get_run").info.artifact_uri
        try:
            return Artifacts(self.uri, self._client).find(self.run_id, root, artifact_path)
        except AbsentError as error:
            stored = [item.path for item in self._call("list_artifacts")]
            raise unknown(f"artifact of run {self.run_id}:", artifact_path, stored) from error

    def read_json(self, name: str) -> Any:
        return read_json(self.download(name), what=f"the artifact {name} of run {self.run_id}")

    def metrics(self) -> dict[str, float]:
        return dict(self._call("get_run").data.metrics)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return steps and values of a metric in order; of a repeated step, the last value."""
        points = self._call("get_metric_history", name)
        in_time = sorted(points, key=lambda point: (point.timestamp, point.step))
        return sorted({point.step: point.value for point in in_time}.items())

    def tag(self, name: str) -> str:
        """Return a tag; empty if it is not set."""
        return self._call("get_run").data.tags.get(name, "")

    def all_tags(self) -> dict[str, str]:
        return dict(self._call("get_run").data.tags)

    def status(self) -> str:
        """Return FINISHED, FAILED, KILLED or RUNNING."""
        return self._call("get_run").info.status

    def finish(self, status: Status = "FINISHED", *, at: int | None = None) -> None:
        """End the run, now or at a time in milliseconds since 1970."""
        self._call("set_terminated", status=status, end_time=at)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client for this run."""
        with explained(self.uri):
            return getattr(self._client, method)(self.run_id, *args, **options)


def _shortened(value: str) -> str:
    """Return the beginning of a long parameter with its digest, so that different values stay different."""
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{value[:_SHOWN]}... ({len(value):,} characters in {_LONG_PARAMS}, SHA-256 {digest})"


@contextmanager
def ending(finish: Callable[[Status], None]) -> Iterator[None]:
    """Call `finish` after the block: with FINISHED, with KILLED after a signal, else with FAILED."""
    status: Status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        finish(status)


def flattened(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested parameters with names such as `a.b` and values as text."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list | tuple) else str(value)


# --- the log of a run in training

METRICS, FILES = "metrics.jsonl", "files"
"""In a log's folder: its entries, and the files that they name."""
MEMBERS, DESCRIBED = "members", "described.json"
"""Also in a log's folder: logs of member runs, each with a description that starts the run."""
CLOSE_SECONDS = 120.0
_POLL, _RETRY = 0.3, 60.0  # seconds between polls for new entries, and before a retry
_PERMANENT = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of `metrics.jsonl`.

    Attributes:
        time: milliseconds since 1970.
        step, metrics: numbers of a step.
        tags: of the run.
        folder, names: of artifacts, copied to `files/<folder>`.
        status: at the end of the run.
        sent: whether MLflow has all earlier entries.
    """

    time: int
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    names: Sequence[str] = ()
    status: Status = "RUNNING"
    sent: bool = False


class Log:
    """The log of a run in training: a file in its folder; one process at a time writes it, and another may send it.

    Args:
        folder: of this run only; created if new, and kept until MLflow has all entries.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = make_folder(folder), folder / METRICS
        self._file = self.path.open("ab", buffering=0)
        if (data := self.path.read_bytes()) and not data.endswith(b"\n"):
            self._file.write(b"\n")  # the process was killed while writing a line

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._add(step=step, metrics={name: float(x) for name, x in metrics.items()})

    def tags(self, tags: Mapping[str, str]) -> None:
        self._add(tags={name: str(value) for name, value in tags.items()})

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a copy of a file, or of the files in a folder, and replace files of the same name."""
        files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.is_file()]
        into = make_folder(self.folder / FILES / folder)
        for file in files:
            shutil.copyfile(file, into / f".{file.name}.part")
            (into / f".{file.name}.part").replace(into / file.name)
        self._add(folder=folder, names=[file.name for file in files])

    def member(self, name: str, described: Mapping[str, Any]) -> Log:
        """Return the log of a member of this run, such as one of several tasks, which becomes a separate run.

        Args:
            name: of the member.
            described: plain data that starts the run.
        """
        log = Log(self.folder / MEMBERS / name)
        (log.folder / DESCRIBED).write_text(json.dumps(described))
        return log

    def end(self, status: Status) -> None:
        self._add(status=status)

    def download(self, artifact_path: str) -> Path:
        """Return the path of a stored artifact."""
        return self.folder / FILES / artifact_path

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return step and value of a metric in order."""
        return sorted({e.step: e.metrics[name] for e, _ in self.entries() if name in e.metrics}.items())

    def entries(self, start: int = 0) -> Iterator[tuple[Entry, int]]:
        """Yield the entries from an offset of the file on, each with the offset of its end."""
        with self.path.open("rb") as file:
            file.seek(start)
            for line in file:
                start += len(line)
                with suppress(ValueError, TypeError):  # cut short when a process was killed
                    yield Entry(**json.loads(line)), start

    def close(self) -> None:
        self._file.close()

    def _add(self, **values: Any) -> None:
        line = json.dumps({"time": int(time.time() * 1000), **values}).encode() + b"\n"
        while line:  # a full disk writes a part, and raises at the next write
            line = line[self._file.write(line) :]


class Sender(Log):
    """A log whose entries, also by other processes, are sent to MLflow.

    A thread sends new entries with `log_batch`, so that training never waits for a server. If the server does not
    answer, the run goes on, one note is printed, and the rest is sent a minute later, by `close`, or by a later
    process. Entries may be sent twice, as MLflow stores a metric of one name, step, value and time once. If a step is
    trained again after a restart, its first entry counts.

    Args:
        folder: of the log.
        connect: returns the run; called in the thread until it succeeds.
        remote: whether a worker that shares no folder with its driver writes and sends the log. Another machine may
            have sent steps that are trained again here, and `close` prints what remains unsent.
    """

    def __init__(self, folder: Path, connect: Callable[[], Tracker], *, remote: bool = False) -> None:
        super().__init__(folder)
        self.why, self.refused = "", list[str]()
        self._connect, self._remote, self._learned = cache(connect), remote, set[str]()
        self._sent = max((end for entry, end in self.entries() if entry.sent), default=0)
        self._had = {
            (name, of.step) for of, end in self.entries() if end <= self._sent for name in of.metrics
        }
        self._closing, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """Number of unsent entries."""
        return sum(not entry.sent for entry, _ in self.entries(self._sent))

    def download(self, artifact_path: str) -> Path:
        """Return the path of an artifact, downloaded if another machine stored it."""
        here = super().download(artifact_path)
        return here if here.exists() else self._connect().download(artifact_path)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the rest, unless the server does not answer or it takes longer than `seconds`."""
        self._closing.set()
        self._thread.join(seconds)
        if not self.unsent:
            with suppress(OSError):  # a full disk: all entries are sent again
                self._add(sent=True)
        elif self._remote:
            files = {
                f"{entry.folder}/{name}" for entry, _ in self.entries(self._sent) for name in entry.names
            }
            what = ", ".join([f"{self.unsent:,} entries", *sorted(files)])
            why = self.why or f"no answer in {seconds:g} seconds"
            kept = f"{self.folder} on {platform.node()} keeps them"
            print(f"note: not in MLflow: {what} ({why}); {kept}", file=sys.stderr)
        super().close()

    def _run(self) -> None:
        """Send until the log is closed, and then until all is sent or the server does not answer."""
        noted, closing = False, False
        while not closing or self.unsent:
            closing = self._closing.wait(_POLL)
            try:
                self._send()
                self.why = ""
            except Exception as error:  # training goes on after any error
                self.why = str(error)
                if closing:
                    return
                if not noted:
                    print(f"note: the run goes on, and logs to {self.path}: {error}", file=sys.stderr)
                noted = True
                self._closing.wait(_RETRY)

    def _send(self) -> None:
        """Send the unsent entries in order."""
        if not (entries := [*self.entries(self._sent)]):
            return
        tracker = self._connect()
        latest = {(entry.folder, name): entry for entry, _ in entries for name in entry.names}
        self._deliver(tracker, [entry for entry, _ in entries], latest)
        self._sent = entries[-1][1]

    def _deliver(
        self, tracker: Tracker, entries: Sequence[Entry], latest: Mapping[tuple[str, str], Entry]
    ) -> None:
        """Send entries together; an entry that MLflow refuses permanently is found by bisection, noted and skipped."""
        points: dict[tuple[str, int], Point] = {}
        for entry in entries:
            for name, value in entry.metrics.items():
                points.setdefault((name, entry.step), (name, value, entry.time, entry.step))
        for name in {name for name, _ in points if self._remote} - self._learned:
            self._had |= {(name, step) for step, _ in tracker.history(name)}
            self._learned.add(name)
        try:
            new = [key for key in points if key not in self._had]
            for start in range(0, len(new), METRICS_AT_ONCE):
                keys = new[start : start + METRICS_AT_ONCE]
                tracker.points([points[key] for key in keys])
                self._had.update(keys)
            for entry in entries:
                if entry.tags:
                    tracker.tags(entry.tags)
                for name in entry.names:
                    if latest[entry.folder, name] is entry:  # else a later entry replaces the file
                        tracker.artifact(self.folder / FILES / entry.folder / name, entry.folder)
                if entry.status != "RUNNING":
                    tracker.finish(entry.status, at=entry.time)
        except InputError as error:
            if getattr(error.__cause__, "error_code", "") not in _PERMANENT:
                raise
            tracker.refuse_deleted()  # a deleted run may be restored
            if len(entries) > 1:
                for half in (entries[: len(entries) // 2], entries[len(entries) // 2 :]):
                    self._deliver(tracker, half, latest)
                return
            if str(error) not in self.refused:
                print(f"note: not logged: {error}", file=sys.stderr)
            self.refused.append(str(error))
        self._had |= points.keys()


@contextmanager
def system_metrics(tracker: Tracker) -> Iterator[None]:
    """Let MLflow log measurements of this machine inside the block, if MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING is set.

    Raises:
        InputError: the packages that measure are not installed.
    """
    from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING as wanted

    if not wanted.get():
        yield
        return
    with needed("system-metrics"):
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(tracker.run_id, resume_logging=True, tracking_uri=tracker.uri)
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


# --- provenance

_PROC = Path("/proc")


def provenance(home: Path) -> dict[str, str]:
    """Return tags for a run: the git commit, whether files differ from it, the machine, and versions, also of plug-ins.

    Args:
        home: the project's home; its checkout counts if the code runs from a copy without `.git`, as in a Ray job, and
            the environment does not name the commit.

    Raises:
        InputError: the environment variable is not a commit.
    """
    points = entry_points()
    groups = sorted(group for group in points.groups if group.startswith("polypool."))
    plugged = [point.dist for group in groups for point in points.select(group=group) if point.dist]
    tags = {"python": platform.python_version(), "machine": machine()}
    tags |= {name: found for name in PACKAGES if (found := installed(name))}
    tags |= {f"plugin.{dist.name}": dist.version for dist in plugged}
    here, named = Path(__file__).resolve().parents[1], os.environ.get(COMMIT, "")
    if named and not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", named):
        raise InputError(f"{COMMIT} must be what `git rev-parse HEAD` prints, not {named!r:.80}")
    if named and not (here / ".git").exists():
        return {**tags, "git_commit": named, "mlflow.source.git.commit": named}
    checkout = next((folder for folder in (here, home) if (folder / ".git").exists()), None)
    git = partial(subprocess.check_output, text=True, timeout=10, cwd=checkout, stderr=subprocess.DEVNULL)
    try:
        commit = git(["git", "rev-parse", "HEAD"]).strip() if checkout else ""
        changed = commit and git(["git", "status", "--porcelain", "--untracked-files=no"]).strip()
    except (OSError, subprocess.SubprocessError):
        commit = changed = ""
    if not commit:
        return {**tags, "git_commit": "unknown"}
    dirty = str(bool(changed)).lower()
    return {**tags, "git_commit": commit, "git_dirty": dirty, "mlflow.source.git.commit": commit}


def command_line() -> str:
    """Return the command line of this process as typed; empty if it is not a verb of polypool."""
    program, *words = sys.argv or [""]
    return shlex.join([*program.split(), *words]) if program.startswith("polypool ") else ""


def source_tags(command: str) -> dict[str, str]:
    """Return the tags that fill the column Source of MLflow's UI.

    The column is narrow, so the text begins with the verb. The UI shows the part after the last slash, so only the
    words before the first path are taken; a separate tag has the whole command.

    Args:
        command: as of `command_line`.
    """
    words = shlex.split(command.removeprefix("polypool ")) or [Path((sys.argv or [""])[0]).name or "python"]
    shown = [*itertools.takewhile(lambda word: "/" not in word, words)]
    name = shlex.join(shown) + " ..." * (len(shown) < len(words))
    return {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"}


def installed(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def machine() -> str:
    """Return system, processor and GPUs, without host name: `Linux x86_64, 16 x AMD EPYC 9654, 1 x NVIDIA H100`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    def named(files: str, name: str) -> list[str]:
        texts = [file.read_text(errors="replace") for file in sorted(_PROC.glob(files))]
        found = [re.search(rf"^{name}\s*:\s*(\S.*)$", text, re.MULTILINE) for text in texts]
        return [" ".join(match[1].split()) for match in found if match]

    (cpu, *_) = [*named("cpuinfo", "model name"), platform.processor() or "unknown processor"]
    gpus = Counter(named("driver/nvidia/gpus/*/information", "Model"))
    parts = [f"{platform.system()} {platform.machine()}", f"{cores} x {cpu}"]
    return ", ".join([*parts, *(f"{count} x {name}" for name, count in gpus.items())])


# --- models


def log_model(
    tracker: Tracker,
    save: Callable[[Path, str], object],
    *,
    name: str,
    scores: Iterable[tuple[str, str]],
) -> str:
    """Log a model as the output of a run; return its address, such as `models:/m-...`.

    Args:
        tracker: of the run.
        save: creates a folder with the model of a given id.
        name: shown in the UI.
        scores: prefixes of the model's metrics in the run, such as `coco-5k/`, each with the context of the input that
            they are linked to, if the run has it.

    Raises:
        InputError: MLflow refuses, or does not answer.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric

    client, run_id = tracker._client, tracker.run_id
    with explained(tracker.uri), tempfile.TemporaryDirectory(prefix="polypool-model-") as folder:
        run = client.get_run(run_id)
        of_mlflow = (NOTE, "mlflow.source.")
        made = client.create_logged_model(
            run.info.experiment_id,
            name=name,
            source_run_id=run_id,
            params=run.data.params,
            tags={
                tag: value
                for tag, value in run.data.tags.items()
                if tag.startswith(of_mlflow) or not tag.startswith("mlflow.")
            },
        )
        status = LoggedModelStatus.FAILED
        try:
            save(Path(folder) / "model", made.model_id)
            client.log_model_artifacts(made.model_id, str(Path(folder) / "model"))
            client.log_outputs(run_id, [LoggedModelOutput(made.model_id, step=0)])
            read = {
                tag.value: (each.dataset.name, each.dataset.digest)
                for each in (run.inputs.dataset_inputs if run.inputs else ())
                for tag in each.tags
                if tag.key == DATASET_CONTEXT
            }
            linked = []
            for start, context in scores:
                data, digest = read.get(context, (None, None))
                for metric in sorted(name for name in run.data.metrics if name.startswith(start)):
                    history = client.get_metric_history(run_id, metric)
                    last = max(history, key=lambda point: (point.step, point.timestamp))
                    of = {"model_id": made.model_id, "dataset_name": data, "dataset_digest": digest}
                    linked.append(Metric(metric, last.value, last.timestamp, last.step, **of, run_id=run_id))
            if linked:
                client.log_batch(run_id, metrics=linked)
            status = LoggedModelStatus.READY
        finally:
            client.finalize_logged_model(made.model_id, status)
    return f"models:/{made.model_id}"


def register(tracker: Tracker, model: str, *, name: str, alias: str = "") -> str:
    """Register a model of a run as the next version of a name; return the version.

    Args:
        tracker: of the run.
        model: its address, from `log_model`.
        name: in the registry, created if new.
        alias: moved to this version; empty for none.

    Raises:
        InputError: MLflow refuses the name or the alias, or does not answer.
    """
    from mlflow.exceptions import MlflowException

    client, model_id = tracker._client, model.removeprefix("models:/")
    with explained(tracker.uri):
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        made = client.create_model_version(name, source=model, run_id=tracker.run_id, model_id=model_id)
        versions = json.dumps([{"name": name, "version": made.version}])
        client.set_logged_model_tags(model_id, {MODEL_VERSIONS: versions})  # shown on the model's page
        if alias:
            client.set_registered_model_alias(name, alias, made.version)
    return str(made.version)


def requirements(packages: Iterable[str]) -> list[str]:
    """Return the installed ones of some packages with their versions, in pip's format."""
    return [f"{name}=={found.partition('+')[0]}" for name in packages if (found := installed(name))]


_ALIAS, _RESERVED = re.compile(r"[\w-]+"), re.compile(r"latest|v\d+", re.IGNORECASE)


def check_names(name: str, alias: str) -> None:
    """Check the name and the alias of a registered model before anything is written; empty for none.

    Raises:
        InputError: an alias without a name, or a name or an alias that MLflow does not allow.
    """
    if alias and not name:
        raise InputError(f"--alias {alias} needs a registered model; name it by --registered-name")
    if name and (not name.strip() or "/" in name or ":" in name):
        raise InputError(f"--registered-name {name!r}: a model's name in MLflow has no / and no :")
    if alias and (not _ALIAS.fullmatch(alias) or _RESERVED.fullmatch(alias)):
        raise InputError(
            f"--alias {alias!r}: MLflow takes letters, digits, _ and -, and neither latest nor a version such as v1"
        )
