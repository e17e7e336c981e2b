"""Runs as Weights & Biases shows them: of the same ids, so that a run which is mirrored again goes on there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.files import atomic, make_folder
from infra.tracking import RunRecord
from infra.tracking.tracker import NOTE, Point
from pipelines.mirroring.base import results, settings

_STEP = "mlflow_step"
"""What curves are drawn over: a run's own steps, which W&B's count of calls is not."""


class WandB:
    """A project of W&B's, by its own client and settings (`WANDB_MODE`, `WANDB_API_KEY`, ...).

    Args:
        project: its name.
        entity: whose it is; of the user where empty.
        folder: where the client keeps its files, and what was sent is noted.

    Raises:
        InputError: the client is not installed.
    """

    def __init__(self, project: str, *, entity: str, folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise InputError(
                f"W&B's client cannot be imported ({error}): pip install 'polypool[wandb]'"
            ) from error
        self._wandb, self._folder = wandb, make_folder(folder)
        self._project, self._entity = project, entity
        self._note = self._folder / f"{project}.json"

    def has_whole(self, record: RunRecord) -> bool:
        """Whether a run was sent as it ended; one that was gone on with since was not."""
        return record.ended is not None and self._noted().get(record.run_id) == record.ended

    def open(self, record: RunRecord) -> Sent:
        """Begin a run, or one of the same id in place of what is there."""
        # it would say thirty lines a run, and measure this machine, which is not the run's
        quiet = self._wandb.Settings(silent=True, console="off", x_disable_stats=True)
        run = self._wandb.init(
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
        return Sent(run, self._wandb.Image, whole=self._whole)

    def _noted(self) -> dict[str, float]:
        return json.loads(self._note.read_text()) if self._note.is_file() else {}

    def _whole(self, record: RunRecord) -> None:
        with atomic(self._note) as file:
            file.write(json.dumps(self._noted() | {record.run_id: record.ended}).encode())


class Sent:
    """A run of W&B's.

    Args:
        run: as the client has it.
        image: makes a picture of a file's path.
        whole: notes that all of a run was sent.
    """

    def __init__(self, run: Any, image: Any, *, whole: Any) -> None:
        self._run, self._image, self._whole = run, image, whole

    def points(self, points: Sequence[Point]) -> None:
        """Send numbers, those of a step together."""
        for step, of_step in groupby(points, key=lambda point: point[3]):
            self._run.log({name: value for name, value, *_ in of_step} | {_STEP: step})

    def pictures(self, paths: Sequence[Path]) -> None:
        """Send figures."""
        if paths:
            self._run.log({f"figures/{path.stem}": self._image(str(path)) for path in paths})

    def close(self, record: RunRecord) -> None:
        """Send what was reached, and end the run there as it ended, or leave it, where it goes on."""
        self._run.summary.update(results(record))
        self._run.finish(exit_code=0 if record.status in ("FINISHED", "RUNNING") else 1)
        if record.ended is not None:
            self._whole(record)
