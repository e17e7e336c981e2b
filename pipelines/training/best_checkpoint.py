"""The best checkpoint of a run: what training writes when an epoch is the best so far, and every verb reads back."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from infra.checkpoint import save_weights
from infra.errors import InputError
from infra.tracking import Tracker
from tasks.base import TaskAdapter
from tasks.run import Run, to_json

ARTIFACT = "model"
"""The folder of a run's artifacts that holds it."""
WEIGHTS, RUN, ASSETS = "model.safetensors", "run.json", "assets.json"
"""Its files, and those of an exported model."""

_OTHER_KINDS = {
    "comparison": "is the summary of a comparison or a sweep; give one of the runs that it compares",
    "ensemble": "is an ensemble; give one of its members, which its parameter `members` names",
    "sweep": "stands for a sweep; give one of its runs, such as the one that its tag `best.RECIPE` names",
    "synthetic": "is that of a synthetic experiment; give a run that was trained on a corpus",
    "": "was not made by polypool, as it has no tag `kind`; give a run that was trained",
}
"""By kind, what a run is that no training made, and what to give instead."""


def write_model(folder: Path, model: nn.Module, run: Run, adapter: TaskAdapter) -> None:
    """Write what rebuilds a model: weights, run and assets."""
    save_weights(model, folder / WEIGHTS)
    (folder / RUN).write_text(json.dumps(to_json(run), indent=1))
    (folder / ASSETS).write_text(json.dumps(adapter.assets))


def best_checkpoint(tracker: Tracker) -> Path:
    """Return the folder of a run's best checkpoint.

    Raises:
        InputError: the run has none, or not all of it is there.
    """
    try:
        folder = tracker.download(ARTIFACT)
    except InputError as error:
        raise InputError(f"run {tracker.run_id} {_why_none(tracker)}") from error
    if missing := [file for file in (WEIGHTS, RUN, ASSETS) if not (folder / file).is_file()]:
        raise InputError(
            f"{folder}: {', '.join(missing)} of the model of run {tracker.run_id} is missing; {_again(tracker)}"
        )
    return folder


def weights_of(run_id: str, uri: str) -> Path:
    """Return the file of the weights of a run's best checkpoint.

    Args:
        run_id: the run.
        uri: the store that has it.

    Raises:
        InputError: there is no such run, or it has none.
    """
    return best_checkpoint(Tracker.attach(uri, run_id, running=False)) / WEIGHTS


def other_than_trained(kind: str) -> str:
    """Say what a run is that no training made, by its tag `kind`, and what to give instead."""
    return _OTHER_KINDS.get(kind, f"is of kind {kind!r} and was not trained here; give a run that was")


def _why_none(tracker: Tracker) -> str:
    """Say why a run has no model."""
    kind = tracker.tag("kind")
    if kind != "train":
        return f"has no model: it {other_than_trained(kind)}"
    if any(name.startswith("dev/") for name in tracker.metrics()):  # an epoch that was scored left one
        return f"has no model any more: the artifact was deleted; {_again(tracker)}"
    return (
        "has no model: it ended before its first epoch was scored; "
        f"`python -m pipelines.train resume {tracker.run_id}` goes on with it"
    )


def _again(tracker: Tracker) -> str:
    return f"`python -m pipelines.rerun {tracker.run_id}` trains it again"
