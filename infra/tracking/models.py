"""Trained models as MLflow knows them: with the run, its scores and data, a signature, versions and aliases."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infra.errors import InputError
from infra.tracking.location import explained
from infra.tracking.tracker import NOTE, Tracker


def log_model(
    tracker: Tracker,
    save: Callable[[Path, str], object],
    *,
    name: str,
    scores: Iterable[tuple[str, str]],
) -> str:
    """Keep a model as one that a run made; return its address, such as `models:/m-...`.

    Args:
        tracker: of the run.
        save: writes the model to a folder that is still to be made, as one of the id that it is given.
        name: what people call it.
        scores: beginnings of names of the run's metrics that are the model's, such as `coco-5k/`, each with the context
            of the run's input that they were scored on; they are linked to it where the run names it.

    Raises:
        InputError: MLflow refuses, or does not answer.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    client, run_id = tracker._client, tracker.run_id
    with explained(tracker.uri), tempfile.TemporaryDirectory(prefix="polypool-model-") as folder:
        run = client.get_run(run_id)
        made = client.create_logged_model(
            run.info.experiment_id,
            name=name,
            source_run_id=run_id,
            params=run.data.params,
            tags=_shared(run.data.tags),
        )
        status = LoggedModelStatus.FAILED
        try:
            save(Path(folder) / "model", made.model_id)
            client.log_model_artifacts(made.model_id, str(Path(folder) / "model"))
            client.log_outputs(run_id, [LoggedModelOutput(made.model_id, step=0)])
            _link_scores(tracker, made.model_id, [*scores])
            status = LoggedModelStatus.READY
        finally:
            client.finalize_logged_model(made.model_id, status)
    return f"models:/{made.model_id}"


def _shared(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags of a run that are its model's, too: ours, its description and its source."""
    of_mlflow = (NOTE, "mlflow.source.")
    return {
        name: value
        for name, value in tags.items()
        if name.startswith(of_mlflow) or not name.startswith("mlflow.")
    }


def _link_scores(tracker: Tracker, model_id: str, scores: Sequence[tuple[str, str]]) -> None:
    """Note a run's scores as a model's, on the data that the run names; the run's own stay as they are."""
    from mlflow.entities import Metric
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    client, run_id = tracker._client, tracker.run_id
    run = client.get_run(run_id)
    read = {
        tag.value: (each.dataset.name, each.dataset.digest)
        for each in run.inputs.dataset_inputs
        for tag in each.tags
        if tag.key == MLFLOW_DATASET_CONTEXT
    }
    linked = []
    for metric in sorted(run.data.metrics):
        context = next((context for start, context in scores if metric.startswith(start)), None)
        if context is None:
            continue
        last = max(client.get_metric_history(run_id, metric), key=lambda point: (point.step, point.timestamp))
        data, digest = read.get(context, (None, None))
        linked.append(
            Metric(
                metric,
                last.value,
                last.timestamp,
                last.step,
                model_id=model_id,
                dataset_name=data,
                dataset_digest=digest,
                run_id=run_id,
            )
        )
    if linked:
        client.log_batch(run_id, metrics=linked)


def register(tracker: Tracker, model: str, *, name: str, alias: str = "") -> str:
    """Register a model of a run as the next version of a name; return the version.

    Args:
        tracker: of the run.
        model: its address, as of `log_model`.
        name: in the registry, made where it is new.
        alias: that is to mean this version from now on; none where empty.

    Raises:
        InputError: a name or an alias that MLflow refuses; it does not answer.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

    client, model_id = tracker._client, model.removeprefix("models:/")
    with explained(tracker.uri):
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
                raise
        made = client.create_model_version(name, source=model, run_id=tracker.run_id, model_id=model_id)
        versions = json.dumps([{"name": name, "version": made.version}])
        client.set_logged_model_tags(
            model_id, {MLFLOW_MODEL_VERSIONS: versions}
        )  # what the model's page shows
        if alias:
            client.set_registered_model_alias(name, alias, made.version)
    return str(made.version)


def requirements(packages: Iterable[str]) -> list[str]:
    """Return packages with the versions that are here, as pip reads them; those that are not here are left out."""
    pinned = []
    for package in packages:
        try:
            pinned.append(f"{package}=={version(package).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return pinned


def check_names(name: str, alias: str) -> None:
    """Refuse what a model cannot be registered as, before anything is written; empty for none.

    Raises:
        InputError: an alias of no registered model, or a name or an alias that MLflow does not allow.
    """
    if alias and not name:
        raise InputError(f"--alias {alias} is of a registered model; name it by --registered-name")
    if not name:
        return
    from mlflow.exceptions import MlflowException
    from mlflow.utils import validation

    checks = [("--registered-name", name, validation._validate_model_name)]
    if alias:
        checks.append(("--alias", alias, validation._validate_model_alias_name))
        checks.append(("--alias", alias, validation._validate_model_alias_name_reserved))
    for option, value, check in checks:
        try:
            check(value)
        except MlflowException as error:
            raise InputError(f"{option} {value!r}: {str(error).splitlines()[0]}") from error
