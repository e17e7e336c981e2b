"""The best checkpoint of a run: weights, settings and assets, written after the best epoch on `val`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from polypool.infra.digests import refuse_damaged, write_digests
from polypool.infra.errors import InputError
from polypool.infra.tracking import Tracker
from polypool.pipelines.training.checkpoints.format import save_weights
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run, to_record

ARTIFACT = "model"
"""The artifact folder of a run."""
WEIGHTS, RUN, ASSETS = "model.safetensors", "run.json", "assets.json"
"""Files of a best checkpoint and of an exported model."""

_OTHER_KINDS = {
    "comparison": "is the summary of a comparison or a sweep; give one of the runs that it compares",
    "ensemble": "is an ensemble; give one of its members, which its parameter `members` names",
    "sweep": "stands for a sweep; give one of its runs, such as the one that its tag `best.RECIPE` names",
    "transfer": "holds the scores of a trained run on other data; give that run, its parent",
    "synthetic": "is that of a synthetic experiment; give a run that was trained on a corpus",
    "": "was not made by polypool, as it has no tag `kind`; give a run that was trained",
}
"""For each kind of run without training: what it is, and what to give instead."""


def write_model(
    folder: Path,
    model: nn.Module,
    run: Run,
    adapter: TaskAdapter,
    *,
    digests: Mapping[str, str] | None = None,
) -> None:
    """Write weights, run and assets of a model to a folder, with their digests.

    Args:
        folder: it exists.
        model, run, adapter: what is written.
        digests: of the data of training; what the adapter describes now if None.
    """
    save_weights(model, folder / WEIGHTS)
    record = to_record(run, adapter.describe() if digests is None else digests)
    (folder / RUN).write_text(json.dumps(record, indent=1))
    (folder / ASSETS).write_text(json.dumps(adapter.assets))
    write_digests(folder, (WEIGHTS, RUN, ASSETS))


def best_checkpoint(tracker: Tracker) -> Path:
    """Return the folder of a run's best checkpoint.

    Raises:
        InputError: the run has none, or a file is missing or damaged.
    """
    try:
        folder = tracker.download(ARTIFACT)
    except InputError as error:
        raise InputError(f"run {tracker.run_id} {_why_none(tracker)}") from error
    if missing := [file for file in (WEIGHTS, RUN, ASSETS) if not (folder / file).is_file()]:
        raise InputError(
            f"{folder}: {', '.join(missing)} of the model of run {tracker.run_id} is missing; {_again(tracker)}"
        )
    refuse_damaged(folder, then=_again(tracker))
    return folder


def weights_of(run_id: str, uri: str) -> Path:
    """Return the file of weights of a run's best checkpoint in the tracking store `uri`.

    Raises:
        InputError: there is no such run, or it has no checkpoint.
    """
    return best_checkpoint(Tracker.attach(uri, run_id, running=False)) / WEIGHTS


def other_than_trained(kind: str) -> str:
    """Return the message for a run that was not trained, by its tag `kind`."""
    return _OTHER_KINDS.get(kind, f"is of kind {kind!r} and was not trained here; give a run that was")


def _why_none(tracker: Tracker) -> str:
    kind = tracker.tag("kind")
    if kind != "train":
        return f"has no model: it {other_than_trained(kind)}"
    if any(name.startswith("dev/") for name in tracker.metrics()):
        return f"has no model any more: the artifact was deleted; {_again(tracker)}"
    return (
        "has no model: it ended before its first epoch was scored; "
        f"`polypool train resume {tracker.run_id}` goes on with it"
    )


def _again(tracker: Tracker) -> str:
    return f"`polypool train rerun {tracker.run_id}` trains it again"
