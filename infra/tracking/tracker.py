"""A run in MLflow: created, continued and read.

Everything goes through a client and a run id. There is no active run and no automatic logging, so that another process,
or a restart of this one, can continue a run by its id.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polypool.infra.errors import InputError, unknown
from polypool.infra.files import read_json
from polypool.infra.tracking.experiment import experiment_id
from polypool.infra.tracking.location import connect, explained
from polypool.infra.tracking.mlflow_private import (
    DATASET_CONTEXT,
    DIGEST_LENGTH,
    PARAM_LENGTH,
    PARAMS_AT_ONCE,
)
from polypool.infra.tracking.provenance import command_line, provenance, source_tags
from polypool.infra.tracking.run_records import HOME, Source, folder_at, unknown_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

COMMAND = "command"
"""Tag: the command line that started a run; empty for Python."""
NOTE = "mlflow.note.content"
"""Tag: a run's description, Markdown that the UI shows."""
PARENT = "mlflow.parentRunId"
"""Tag: the parent of a run, under which the UI shows it."""
_LONG_PARAMS = "long_params.json"
_SHOWN = 200  # characters of a parameter that is too long

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
Point = tuple[str, float, int, int]
"""A metric's name, its value, when it was logged (milliseconds since 1970), and the step."""


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
            InputError: there is no such run (the message lists the nearest), or it was deleted.
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
        """Raise InputError where the run was deleted, which MLflow takes nothing for; `run` is it as read already."""
        if (run or self._call("get_run")).info.lifecycle_stage == "deleted":
            raise InputError(
                f"run {self.run_id} of {self.uri} was deleted; `mlflow runs restore --run-id {self.run_id}` restores it"
            )

    def found_by(self, tags: Mapping[str, str]) -> Tracker | None:
        """Return the latest run of the same experiment with these tags, or None."""
        experiment = self._call("get_run").info.experiment_id
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        with explained(self.uri):
            found = self._client.search_runs([experiment], filter_string=wanted, max_results=1)
        return Tracker(uri=self.uri, run_id=found[0].info.run_id, _client=self._client) if found else None

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
        """Log what the run reads; inputs that were logged before stay as they are."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    name=source.name,
                    digest=source.digest[:DIGEST_LENGTH],
                    source_type=source.place.partition("://")[0] if "://" in source.place else "local",
                    source=json.dumps({"uri": source.place}),
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
        """Store a table as the artifact `name`, which ends in `.json`; the UI shows it as a table."""
        self._call("log_table", dict(columns), name)

    def download(self, artifact_path: str) -> Path:
        """Return the path of an artifact or a folder of them: the stored one itself, or a copy from a server.

        Raises:
            InputError: the run has no such artifact; the message lists those it has.
        """
        held = [item.path for item in self._call("list_artifacts")]
        folder = folder_at(self._call("get_run").info.artifact_uri)
        if artifact_path.split("/")[0] in held:
            if folder:
                path = folder / artifact_path
            else:
                path = Path(self._call("download_artifacts", artifact_path, _downloads(self.run_id).name))
            if path.exists():
                return path
        raise unknown(f"artifact of run {self.run_id}:", artifact_path, held)

    def read_json(self, name: str) -> Any:
        return read_json(self.download(name), what=f"the artifact {name} of run {self.run_id}")

    def metrics(self) -> dict[str, float]:
        return dict(self._call("get_run").data.metrics)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return step and value of a metric in order; after a restart the last value of a step counts."""
        return sorted({step: value for _, value, _, step in self.points_of(name)}.items())

    def points_of(self, name: str) -> list[Point]:
        """Return every value of a metric in the order of time; after a restart a step may have two."""
        points = self._call("get_metric_history", name)
        return sorted(
            ((point.key, point.value, point.timestamp, point.step) for point in points),
            key=lambda point: point[2:],
        )

    def tag(self, name: str) -> str:
        """Return a tag; empty if it is not set."""
        return self._call("get_run").data.tags.get(name, "")

    def all_tags(self) -> dict[str, str]:
        return dict(self._call("get_run").data.tags)

    def started(self) -> float:
        """Return when the run began, in seconds since 1970."""
        return self._call("get_run").info.start_time / 1000

    def status(self) -> str:
        """Return FINISHED, FAILED, KILLED or RUNNING."""
        return self._call("get_run").info.status

    def ending(self) -> AbstractContextManager[None]:
        """End the run with the block, as `ending` does."""
        return ending(self.finish)

    def finish(self, status: Status = "FINISHED", *, at: int | None = None) -> None:
        """End the run, now or at a time in milliseconds since 1970."""
        self._call("set_terminated", status=status, end_time=at)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client for this run."""
        with explained(self.uri):
            return getattr(self._client, method)(self.run_id, *args, **options)


def _shortened(value: str) -> str:
    """Return the beginning of a long parameter with its digest, by which different values stay different."""
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{value[:_SHOWN]}... ({len(value):,} characters in {_LONG_PARAMS}, SHA-256 {digest})"


@cache
def _downloads(run_id: str) -> tempfile.TemporaryDirectory:
    """Return a folder for copies of a run's files, which is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="polypool-", ignore_cleanup_errors=True)


@contextmanager
def ending(finish: Callable[[Status], None]) -> Iterator[None]:
    """Call `finish` after the block: with FINISHED, with KILLED if a signal ended it, else with FAILED."""
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
    """Yield nested parameters under names such as `a.b`, with their values as text."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list | tuple) else str(value)
