"""What the process of one cell does: train, and say how that ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.ray.tuning import reporter
from infra.tracking import Tracker
from pipelines.sweeping.found import STOPPED, SWEEP, Found
from pipelines.training.runs import resume, start
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class CellWork:
    """Trains the cell of a number.

    Attributes:
        cells: those to train.
        sweep: name of this sweep, a tag of its runs.
        uri: the tracking store.
        home: the project's.
        metric: by recipe, the metric that decides which cells are stopped early; empty where none are.
    """

    cells: tuple[Found, ...]
    sweep: str
    uri: str
    home: Path
    metric: dict[str, str]

    def __call__(self, number: int) -> dict[str, Any]:
        """Train a cell; return the id of its run, or what went wrong."""
        os.environ |= {"POLYPOOL_HOME": str(self.home), "MLFLOW_TRACKING_URI": self.uri}
        found = self.cells[number]
        run: Run = found.cell.run
        try:
            metric = self.metric.get(run.recipe)
            callbacks = [reporter(metric)] if metric else []
            if found.run_id:
                Tracker.attach(self.uri, found.run_id).tags({SWEEP: self.sweep, STOPPED: ""})
                return {"run_id": resume(found.run_id, callbacks=callbacks)}
            return {"run_id": start(run, more_tags={SWEEP: self.sweep}, callbacks=callbacks)}
        except InputError as error:
            return {"error": str(error)}
        except Exception as error:  # whatever it is, the other cells go on
            return {"error": f"{type(error).__name__}: {error}"}
