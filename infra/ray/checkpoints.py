"""What is noted of a run's checkpoints in the run's folder; on a disk it goes on with what Ray Train notes there."""

from __future__ import annotations

from pathlib import Path

from infra.errors import InputError
from infra.files import atomic, read_json

SNAPSHOT = "checkpoint_manager_snapshot.json"
WHOLE = "whole"
"""Of a run whose checkpoints are in object storage: what its workers told of them, which holds the name of the last."""


def noted(folder: Path) -> str | None:
    """Return the name of the checkpoint that Ray Train goes on with; None where it has noted none.

    Raises:
        InputError: what it noted is damaged.
    """
    path = folder / SNAPSHOT
    if not path.is_file():
        return None
    state = read_json(path, what="what is known of a run's checkpoints")
    latest = state.get("latest_checkpoint_result") if isinstance(state, dict) else None
    name = latest.get("checkpoint_dir_name") if isinstance(latest, dict) else None
    if not isinstance(name, str):
        raise InputError(f"{path}: names no checkpoint")
    return name


def note(folder: Path, name: str) -> None:
    """Let Ray Train go on with the checkpoint of a name, which it may have had no room to note."""
    from ray.train.v2._internal.execution.checkpoint import checkpoint_manager as ray

    result = ray._TrainingResultState(checkpoint_dir_name=name, metrics={})
    state = ray._CheckpointManagerState(
        checkpoint_results=[result],
        checkpoint_report_indices=[0],
        latest_checkpoint_result=result,
        pending_training_results=[],
        pending_validation_specs=[],
        current_report_index=1,
        validated_checkpoint_dir_names=[],
        timed_out_validation_checkpoint_dir_names=[],
        failed_validation_checkpoint_dir_names=[],
    )
    with atomic(folder / SNAPSHOT) as file:
        file.write(state.json().encode())


def told(folder: Path) -> str | None:
    """Return the name of the last checkpoint in object storage, as far as it was told here; None where none was."""
    path = folder / WHOLE
    return path.read_text() if path.is_file() else None
