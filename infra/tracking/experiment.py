"""Experiments: created with a view for MLflow's UI, and their addresses there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from polypool.infra.process.output import Step
from polypool.infra.tracking.location import connect, database_file, explained
from polypool.infra.tracking.run_records import read_experiment, refuse_deleted

if TYPE_CHECKING:
    from mlflow import MlflowClient

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
        home: its artifacts go to `mlartifacts` in it, unless a server keeps them.

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


def to_see(uri: str, experiment: str) -> Step:
    """Return how to see an experiment's runs in a browser: the command, with the address where it starts a server.

    Raises:
        InputError: the store does not answer.
    """
    path, found = database_file(uri), None
    if path is not None:
        found = read_experiment(path, experiment)
    if found is None:
        client = connect(uri)
        with explained(uri):
            known = client.get_experiment_by_name(experiment)
        found = (known.experiment_id, known.tags) if known is not None else None
    server = uri.rstrip("/") if uri.startswith("http") else f"http://127.0.0.1:{_PORT}"
    page = f"{server}/#/experiments"
    if found is not None:
        number, tags = found
        view = f"&viewStateShareKey={_VIEW}" if _VIEW_TAG in tags else ""
        page += f"/{number}/runs?workflowType=machine_learning{view}"
    if uri.startswith("http"):
        return "all runs in a browser", ("$open", page)
    return f"all runs in a browser at {page}", ("$mlflow", "ui", "--backend-store-uri", uri)
