"""Runs in Weights & Biases, under the same ids, so that a run that is mirrored again continues there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from polypool.infra.extras import needed
from polypool.infra.files import atomic, make_folder
from polypool.infra.tracking import RunRecord
from polypool.infra.tracking.tracker import NOTE, Point
from polypool.pipelines.comparison.mirrors import results, settings

_STEP = "mlflow_step"  # the axis of curves: a run's own steps, not W&B's count of calls


class WandB:
    """A project of W&B, through its client and settings (`WANDB_MODE`, `WANDB_API_KEY`, ...).

    Args:
        project: its name.
        entity: its user or team; empty for the client's.
        folder: for the client's files and a list of the runs that were sent.

    Raises:
        InputError: the client is not installed.
    """

    def __init__(self, project: str, *, entity: str, folder: Path) -> None:
        with needed("wandb"):
            import wandb
        self._wandb, self._folder = wandb, make_folder(folder)
        self._project, self._entity = project, entity
        self._note = self._folder / f"{project}.json"
        self._runs: dict[str, Any] = {}

    def has_whole(self, record: RunRecord) -> bool:
        """Whether a run was sent as it ended; not if it was resumed since."""
        return record.ended is not None and self._noted().get(record.run_id) == record.ended

    def points(self, record: RunRecord, points: Sequence[Point]) -> None:
        """Send numbers, those of a step together."""
        for step, of_step in groupby(points, key=lambda point: point[3]):
            self._run(record).log({name: value for name, value, *_ in of_step} | {_STEP: step})

    def pictures(self, record: RunRecord, paths: Sequence[Path]) -> None:
        if paths:
            images = {f"figures/{path.stem}": self._wandb.Image(str(path)) for path in paths}
            self._run(record).log(images)

    def close(self, record: RunRecord) -> None:
        """Send the results, and end the run there with the status of its record."""
        self._run(record).summary.update(results(record))
        self._runs.pop(record.run_id).finish(exit_code=0 if record.status in ("FINISHED", "RUNNING") else 1)
        if record.ended is not None:
            with atomic(self._note) as file:
                file.write(json.dumps(self._noted() | {record.run_id: record.ended}).encode())

    def _run(self, record: RunRecord) -> Any:
        """Return the client's run; a new one takes the place of an earlier one of the same id."""
        if record.run_id in self._runs:
            return self._runs[record.run_id]
        # without thirty printed lines per run, and measurements of this machine, which is not the run's
        quiet = self._wandb.Settings(silent=True, console="off", x_disable_stats=True)
        run = self._runs[record.run_id] = self._wandb.init(
            project=self._project,
            entity=self._entity or None,
            id=record.run_id,
            name=record.name,
            notes=record.tags.get(NOTE, ""),
            tags=[tag for name in ("task", "dataset", "kind") if (tag := record.tags.get(name))],
            group=record.tags.get("recipe") or None,
            config=settings(record),
            dir=str(self._folder),
            reinit="create_new",
            settings=quiet,
        )
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        return run

    def _noted(self) -> dict[str, float]:
        return json.loads(self._note.read_text()) if self._note.is_file() else {}
