"""Tracked runs with an untrained model, for tests that need a run but no training."""

import tempfile
from pathlib import Path

import torch

from polypool.infra import paths
from polypool.infra.registry import TASKS
from polypool.infra.spec import trust_modules
from polypool.infra.tracking import Tracker, tracking_uri
from polypool.pipelines.training.checkpoint import write_model
from polypool.pipelines.training.record import tags
from polypool.tasks.run import Run, modules, to_json


def track_untrained(run: Run) -> str:
    """Record a run with its untrained model, initialised from its seed, in the current home; return its id."""
    home = paths.home()
    name = run.name or "made"
    tracker = Tracker.start(
        run.experiment, uri=tracking_uri(home), home=home, name=name, tags=tags(run), params=to_json(run)
    )
    with tempfile.TemporaryDirectory() as folder:
        export_untrained(run, Path(folder))
        tracker.artifact(Path(folder), "model")
    tracker.finish()
    return tracker.run_id


def export_untrained(run: Run, folder: Path) -> Path:
    """Write a run with its untrained model into a folder, as `export` does; return the folder."""
    torch.manual_seed(run.seed)
    trust_modules(*modules(run))
    adapter = TASKS.build(run.task, run)
    write_model(folder, adapter.model(), run, adapter)
    return folder
