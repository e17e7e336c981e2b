"""MLflow, and the only module that imports it: runs are created, continued and read here.

Everything goes through a client and a run id. There is no active run and nothing is logged by itself, so
the process that starts a run can hand its id to another, or to a restart of itself.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlparse

from infra.environment import environment
from infra.errors import AbsentError, InputError, unknown
from infra.files import read_json
from infra.tracking.location import check_uri, opening, tracking_uri, ui_command
from infra.tracking.provenance import provenance

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

__all__ = ["RunRecord", "Tracker", "find_runs", "tracking_uri", "ui_command"]

_PAGE = 1000
_PATIENCE = 5  # seconds for a server to answer its first request
_LONG_PARAMS = "long_params.json"
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as it is recorded. Times are seconds since 1970; metrics are the last ones logged."""

    run_id: str
    name: str
    status: str
    started: float
    ended: float | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """One run. Every method raises InputError where MLflow refuses or no longer answers."""

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
        """Create a run, and the experiment where it is new.

        Args:
            experiment: its name.
            uri: the store, as from `tracking_uri`.
            home: artifacts go to `mlartifacts` in it, unless a server keeps them.
            name: what people call the run.
            tags: what it is found by; commit and versions are added.
            params: nested ones are flattened to `a.b`; what MLflow would cut goes to an artifact.

        Raises:
            InputError: the store does not answer or cannot be used.
        """
        client = _connect(uri, create=True)
        with _explained(uri):
            experiment_id = _experiment_id(client, experiment, uri=uri, home=home)
            tags = {**provenance(home), **tags}
            run = client.create_run(experiment_id, run_name=name, tags=tags)
            tracker = cls(uri=uri, run_id=run.info.run_id, _client=client)
            tracker._params(params)
        return tracker

    @classmethod
    def attach(cls, uri: str, run_id: str, *, running: bool = True) -> Tracker:
        """Go on with a run, in another process or after a restart.

        Args:
            uri: the store.
            run_id: the run.
            running: mark it as running again, and be patient with its server; False to read a run, or to
                add to a finished one.

        Raises:
            InputError: there is no such run (the message lists the nearest), or it was deleted.
        """
        client = _connect(uri, retries=3 if running else 0)
        from mlflow.exceptions import MlflowException

        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            raise _unknown_run(client, uri, run_id) from error
        if run.info.lifecycle_stage == "deleted":
            raise InputError(
                f"run {run_id} of {uri} was deleted; `mlflow runs restore --run-id {run_id}` brings it back"
            )
        tracker = cls(uri=uri, run_id=run_id, _client=client)
        if running:
            tracker._ask("update_run", status="RUNNING")
        return tracker

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step in one request."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._ask("log_batch", metrics=[Metric(name, float(x), now, step) for name, x in metrics.items()])

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        self._ask("log_batch", tags=[RunTag(name, str(value)) for name, value in tags.items()])

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep a file, or all files of a folder, under the artifact folder `folder`."""
        self._ask("log_artifacts" if path.is_dir() else "log_artifact", str(path), folder or None)

    def text(self, name: str, text: str) -> None:
        """Keep text as the artifact `name`."""
        self._ask("log_text", text, name)

    def json(self, name: str, obj: Any) -> None:
        """Keep plain data as the artifact `name`."""
        self.text(name, json.dumps(obj, indent=1))

    def table(self, name: str, columns: Mapping[str, list[Any]]) -> None:
        """Keep a table as the artifact `name`, which ends in `.json`; the UI shows it as one."""
        self._ask("log_table", dict(columns), name)

    def download(self, artifact_path: str) -> Path:
        """Return the path of an artifact or a folder of them: the kept one itself, or a copy of a server's.

        Raises:
            InputError: the run has no such artifact; the message lists those it has.
        """
        held = [item.path for item in self._ask("list_artifacts")]
        root = urlparse(self._ask("get_run").info.artifact_uri)
        if artifact_path.split("/")[0] in held:
            if root.scheme == "file":
                path = Path(unquote(root.path)) / artifact_path
            else:
                path = Path(self._ask("download_artifacts", artifact_path))
            if path.exists():
                return path
        raise unknown(f"artifact of run {self.run_id}:", artifact_path, held)

    def read_json(self, name: str) -> Any:
        """Return what `json` kept."""
        return read_json(self.download(name), what=f"the artifact {name} of run {self.run_id}")

    def metrics(self) -> dict[str, float]:
        """Return the last value of every metric."""
        return dict(self._ask("get_run").data.metrics)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return every value of a metric with its step, in order; after a restart a step's last value counts."""
        points = sorted(self._ask("get_metric_history", name), key=lambda point: point.timestamp)
        return sorted({point.step: point.value for point in points}.items())

    def tag(self, name: str) -> str:
        """Return a tag, empty where it is not set."""
        return self._ask("get_run").data.tags.get(name, "")

    def finish(self, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED") -> None:
        """End the run."""
        self._ask("set_terminated", status=status)

    def _params(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        flat = dict(_flatten(params))
        long = {name: value for name, value in flat.items() if len(value) > MAX_PARAM_VAL_LENGTH}
        if long:
            self.json(_LONG_PARAMS, long)
        rows = [Param(name, f"see {_LONG_PARAMS}" if name in long else value) for name, value in flat.items()]
        for start in range(0, len(rows), MAX_PARAMS_TAGS_PER_BATCH):
            self._ask("log_batch", params=rows[start : start + MAX_PARAMS_TAGS_PER_BATCH])

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client for this run."""
        with _explained(self.uri):
            return getattr(self._client, method)(self.run_id, *args, **options)


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
    client = _connect(uri)
    with _explained(uri):
        known = {found.name: found.experiment_id for found in client.search_experiments()}
        if experiment not in known:
            _refuse_deleted(client.get_experiment_by_name(experiment), uri)
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
    )


def _flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list | tuple) else str(value)


def _connect(uri: str, *, create: bool = False, retries: int = 0) -> MlflowClient:
    """Return a client of a store that has answered, within seconds.

    Args:
        uri: the store.
        create: make a SQLite file that does not exist yet, instead of refusing it.
        retries: how often a server is asked again, after 2, 4, 8, ... seconds.
    """
    check_uri(uri)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    # this one logs tracebacks of what it raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    patience = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_PATIENCE),
    }
    with opening(uri, create=create), environment(patience), _explained(uri):
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
    return client


@contextmanager
def _explained(uri: str) -> Iterator[None]:
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
        raise InputError(
            f"no MLflow server answers at {uri}: {cause}; start it, or set MLFLOW_TRACKING_URI to one that "
            "runs, or unset it to record runs in a file"
        ) from error


def _experiment_id(client: MlflowClient, name: str, *, uri: str, home: Path) -> str:
    """Return the id of an experiment, created where it is new."""
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(name)) is None:
        folder = None if uri.startswith("http") else (Path(home).absolute() / "mlartifacts").as_uri()
        try:
            return client.create_experiment(name, artifact_location=folder)
        except MlflowException:  # another process was faster
            if (found := client.get_experiment_by_name(name)) is None:
                raise
    _refuse_deleted(found, uri)
    return found.experiment_id


def _refuse_deleted(experiment: Experiment | None, uri: str) -> None:
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise InputError(
            f"experiment {experiment.name!r} of {uri} was deleted; use another name, or bring it back with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`"
        )


def _unknown_run(client: MlflowClient, uri: str, run_id: str) -> InputError:
    """Return the error for a run that is not there: it lists the nearest ids, or else the latest runs."""
    with _explained(uri):
        experiments = [found.experiment_id for found in client.search_experiments()]
        runs = client.search_runs(experiments, order_by=["attributes.start_time DESC"], max_results=1000)
    names = {run.info.run_id: run.info.run_name for run in runs}
    nearest = [known for known in names if run_id and known.startswith(run_id)]
    nearest = nearest or difflib.get_close_matches(run_id, names, n=3, cutoff=0.6)
    listed = "".join(f"\n  {known}  {names[known]}" for known in (nearest or list(names))[:5])
    which = "The nearest" if nearest else "The latest"
    return InputError(f"no run {run_id!r} at {uri}. {which} runs:{listed or ' none'}")
