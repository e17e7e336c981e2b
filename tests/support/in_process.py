"""Training with all that a user's run has but Ray: tracked, checkpointed, in this process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from toy import FolderReport, SilentBar

from infra.registry import TASKS
from infra.tracking import Tracker
from pipelines.training.loop import Trainer
from tasks.run import Run


def launch(run: Run, tracker: Tracker, *, callbacks: Sequence[object] = ()) -> str:
    """Stand in for `pipelines.training.runs.launch`."""
    adapter, cpu = TASKS.build(run.task, run), torch.device("cpu")
    Trainer(run, adapter, log=tracker, report=FolderReport(), device=cpu, bar=SilentBar).train()
    tracker.finish()
    return tracker.run_id
