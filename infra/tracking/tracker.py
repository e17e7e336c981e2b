"""A run in MLflow: created, continued and read.

Everything goes through a client and a run id. There is no active run and nothing is logged by itself, so
the process that starts a run can hand its id to another, or to a restart of itself.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from infra.errors import InputError, unknown
from infra.files import read_json
from infra.tracking.artifacts import folder_at
from infra.tracking.experiment import experiment_id
from infra.tracking.finding import unknown_run
from infra.tracking.location import connect, explained
from infra.tracking.provenance import command_line, provenance, source_tags
from infra.tracking.record import Source

if TYPE_CHECKING:
    from mlflow import MlflowClient

COMMAND = "command"
"""The tag that holds the command line that a run came from; empty where it was started from Python."""
NOTE = "mlflow.note.content"
"""The tag that holds a run's description, Markdown that the UI shows."""
PARENT = "mlflow.parentRunId"
"""The tag that names the run which a run belongs to, under which the UI shows it."""
_LONG_PARAMS = "long_params.json"

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
            name: what people call the run.
            tags: what it is found by; commit, versions, the command and what the UI calls its source are added.
            params: nested ones are flattened to `a.b`; what MLflow would cut goes to an artifact.

        Raises:
            InputError: the store does not answer or cannot be used.
        """
        client = connect(uri, create=True)
        with explained(uri):
            tags = {COMMAND: command_line(), **tags}
            tags = {**provenance(home), **source_tags(tags[COMMAND]), **tags}
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
        """Go on with a run, in another process or after a restart.

        Args:
            uri: the store.
            run_id: the run.
            running: mark it as running again, and be patient with its server; False to read a run, or to
                add to a finished one.

        Raises:
            InputError: there is no such run (the message lists the nearest), or it was deleted.
        """
        client = connect(uri, retries=3 if running else 0)
        from mlflow.exceptions import MlflowException

        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            raise unknown_run(client, uri, run_id) from error
        if run.info.lifecycle_stage == "deleted":
            raise InputError(
                f"run {run_id} of {uri} was deleted; `mlflow runs restore --run-id {run_id}` brings it back"
            )
        tracker = cls(uri=uri, run_id=run_id, _client=client)
        if running:
            tracker._ask("update_run", status="RUNNING")
        return tracker

    def found_by(self, tags: Mapping[str, str]) -> Tracker | None:
        """Return the latest run of this one's experiment that has these tags; None where there is none."""
        experiment = self._ask("get_run").info.experiment_id
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

        self._ask("log_batch", metrics=[Metric(*point) for point in points])

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        self._ask("log_batch", tags=[RunTag(name, str(value)) for name, value in tags.items()])

    def inputs(self, sources: Sequence[Source]) -> None:
        """Note what the run reads; what is noted already stays as it is."""
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT
        from mlflow.utils.validation import MAX_DATASET_DIGEST_SIZE

        inputs = [
            DatasetInput(
                Dataset(
                    name=source.name,
                    digest=source.digest[:MAX_DATASET_DIGEST_SIZE],
                    source_type=source.place.partition("://")[0] if "://" in source.place else "local",
                    source=json.dumps({"uri": source.place}),
                    profile=json.dumps(dict(source.profile)) if source.profile else None,
                ),
                tags=[InputTag(MLFLOW_DATASET_CONTEXT, source.context)],
            )
            for source in sources
        ]
        if inputs:
            self._ask("log_inputs", datasets=inputs)

    def params(self, params: Mapping[str, Any]) -> None:
        """Set parameters, as `start` does; one that is set stays as it is."""
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        flat = dict(flattened(params))
        long = {name: value for name, value in flat.items() if len(value) > MAX_PARAM_VAL_LENGTH}
        if long:
            self.json(_LONG_PARAMS, long)
        rows = [Param(name, f"see {_LONG_PARAMS}" if name in long else value) for name, value in flat.items()]
        for start in range(0, len(rows), MAX_PARAMS_TAGS_PER_BATCH):
            self._ask("log_batch", params=rows[start : start + MAX_PARAMS_TAGS_PER_BATCH])

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
        """Return the path of an artifact or a folder of them: the stored one itself, or a copy of a server's.

        Raises:
            InputError: the run has no such artifact; the message lists those it has.
        """
        held = [item.path for item in self._ask("list_artifacts")]
        folder = folder_at(self._ask("get_run").info.artifact_uri)
        if artifact_path.split("/")[0] in held:
            if folder:
                path = folder / artifact_path
            else:
                path = Path(self._ask("download_artifacts", artifact_path, _downloads(self.run_id)))
            if path.exists():
                return path
        raise unknown(f"artifact of run {self.run_id}:", artifact_path, held)

    def read_json(self, name: str) -> Any:
        """Return what `json` stored."""
        return read_json(self.download(name), what=f"the artifact {name} of run {self.run_id}")

    def metrics(self) -> dict[str, float]:
        """Return the last value of every metric."""
        return dict(self._ask("get_run").data.metrics)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return every value of a metric with its step, in order; after a restart a step's last value counts."""
        return sorted({step: value for _, value, _, step in self.points_of(name)}.items())

    def points_of(self, name: str) -> list[Point]:
        """Return every value of a metric in the order of time; after a restart a step may have two."""
        points = self._ask("get_metric_history", name)
        return sorted(
            ((point.key, point.value, point.timestamp, point.step) for point in points),
            key=lambda point: point[2:],
        )

    def tag(self, name: str) -> str:
        """Return a tag, empty where it is not set."""
        return self._ask("get_run").data.tags.get(name, "")

    def all_tags(self) -> dict[str, str]:
        """Return all tags."""
        return dict(self._ask("get_run").data.tags)

    def started(self) -> float:
        """Return when it began, in seconds since 1970."""
        return self._ask("get_run").info.start_time / 1000

    def status(self) -> str:
        """Return how it ended (FINISHED, FAILED, KILLED), or RUNNING."""
        return self._ask("get_run").info.status

    def ending(self) -> AbstractContextManager[None]:
        """End the run with what is inside, as `ending` does."""
        return ending(self.finish)

    def finish(self, status: Status = "FINISHED", *, at: int | None = None) -> None:
        """End the run, now or at a time in milliseconds since 1970."""
        self._ask("set_terminated", status=status, end_time=at)

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client for this run."""
        with explained(self.uri):
            return getattr(self._client, method)(self.run_id, *args, **options)


_folders: dict[str, tempfile.TemporaryDirectory] = {}


def _downloads(run_id: str) -> str:
    """Return a folder for what is fetched of a run, which is removed when this process ends."""
    if run_id not in _folders:
        _folders[run_id] = tempfile.TemporaryDirectory(prefix="polypool-", ignore_cleanup_errors=True)
    return _folders[run_id].name


@contextmanager
def ending(finish: Callable[[Status], None]) -> Iterator[None]:
    """Call `finish` after what is inside: with FINISHED, with KILLED where a signal ended it, else with FAILED."""
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
    """Yield nested parameters as a run keeps them: `a.b`, and the value as text."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list | tuple) else str(value)
