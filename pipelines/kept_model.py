"""The best model of a run among its artifacts, or what is wrong with a run that has none."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.tracking import Tracker
from pipelines.models import ASSETS, RUN, WEIGHTS

_OTHERS = {
    "comparison": "is the summary of a comparison or a sweep; give one of the runs that it compares",
    "ensemble": "is an ensemble; give one of its members, which its parameter `members` names",
    "synthetic": "is that of a synthetic experiment; give a run that was trained on a corpus",
    "": "was not made by polypool, as it has no tag `kind`; give a run that was trained",
}
"""By kind, what a run is that no training made, and what to give instead."""


def kept_model(tracker: Tracker) -> Path:
    """Return the folder of a run's best model.

    Raises:
        InputError: it kept none, or not all of it is there.
    """
    try:
        folder = tracker.download("model")
    except InputError as error:
        raise InputError(f"run {tracker.run_id} {_why_none(tracker)}") from error
    if missing := [file for file in (WEIGHTS, RUN, ASSETS) if not (folder / file).is_file()]:
        raise InputError(
            f"{folder}: {', '.join(missing)} of the model of run {tracker.run_id} is missing; {_again(tracker)}"
        )
    return folder


def other_than_trained(kind: str) -> str:
    """Say what a run is that no training made, by its tag `kind`, and what to give instead."""
    return _OTHERS.get(kind, f"is of kind {kind!r} and was not trained here; give a run that was")


def _why_none(tracker: Tracker) -> str:
    """Say why a run has no model."""
    kind = tracker.tag("kind")
    if kind != "train":
        return f"has no model: it {other_than_trained(kind)}"
    if any(name.startswith("dev/") for name in tracker.metrics()):  # an epoch that was scored left one
        return f"has no model any more: the artifact was deleted; {_again(tracker)}"
    return (
        "kept no model: it ended before its first epoch was scored; "
        f"`python -m pipelines.train resume {tracker.run_id}` goes on with it"
    )


def _again(tracker: Tracker) -> str:
    return f"`python -m pipelines.rerun {tracker.run_id}` trains it again"
