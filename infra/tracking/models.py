"""Models in MLflow: logged with their run, scores and data, and registered under names, versions and aliases."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from polypool.infra.tracking.location import explained
from polypool.infra.tracking.mlflow_private import ALREADY_EXISTS, DATASET_CONTEXT, MODEL_VERSIONS
from polypool.infra.tracking.provenance import installed
from polypool.infra.tracking.tracker import NOTE, Tracker


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
        save: writes the model of a given id to a folder, which it makes.
        name: shown in the UI.
        scores: prefixes of the run's metrics that are the model's, such as `coco-5k/`, each with the context of the
            run's input on which they were scored, to which they are linked if the run has it.

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
    """Return the tags that a model shares with its run: ours, its description and its source."""
    of_mlflow = (NOTE, "mlflow.source.")
    return {
        name: value
        for name, value in tags.items()
        if name.startswith(of_mlflow) or not name.startswith("mlflow.")
    }


def _link_scores(tracker: Tracker, model_id: str, scores: Sequence[tuple[str, str]]) -> None:
    """Log a run's scores as a model's, too, on the data that the run names."""
    from mlflow.entities import Metric

    client, run_id = tracker._client, tracker.run_id
    run = client.get_run(run_id)
    read = {
        tag.value: (each.dataset.name, each.dataset.digest)
        for each in (run.inputs.dataset_inputs if run.inputs else ())
        for tag in each.tags
        if tag.key == DATASET_CONTEXT
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
            if error.error_code != ALREADY_EXISTS:
                raise
        made = client.create_model_version(name, source=model, run_id=tracker.run_id, model_id=model_id)
        versions = json.dumps([{"name": name, "version": made.version}])
        client.set_logged_model_tags(model_id, {MODEL_VERSIONS: versions})  # shown on the model's page
        if alias:
            client.set_registered_model_alias(name, alias, made.version)
    return str(made.version)


def requirements(packages: Iterable[str]) -> list[str]:
    """Return the installed ones of some packages with their versions, as pip reads them."""
    return [f"{name}=={found.partition('+')[0]}" for name in packages if (found := installed(name))]
