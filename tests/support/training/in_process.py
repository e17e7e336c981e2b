"""Training with all that a user's run has but Ray: the body of a worker, in this process."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from toy import SilentBar

from polypool.infra.paths import home
from polypool.infra.ray.tuning import Ended
from polypool.infra.tracking import Tracker
from polypool.pipelines.training.checkpoints.format import Snapshot
from polypool.pipelines.training.checkpoints.in_folder import InFolder
from polypool.pipelines.training.on_ray import open_journal
from polypool.pipelines.training.run_folder import OUTBOX, run_folder
from polypool.pipelines.training.worker import train
from polypool.tasks.run import Run


class WithoutRay(InFolder):
    """Does Ray Train's part: keeps the last checkpoint and gives it back."""

    def report(self, metrics: dict[str, Any], snapshot: Snapshot | None) -> None:
        checkpoint = self.folder / "checkpoint_9"  # later than Ray's, which are named by the year
        if snapshot is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)
            checkpoint.mkdir(parents=True)
            snapshot.write(checkpoint)

    @contextmanager
    def last(self) -> Iterator[Path | None]:
        yield max(self.folder.glob("checkpoint_[0-9]*"), default=None)


def fit(run: Run, tracker: Tracker, *, assets: Mapping[str, Any] | None = None, **_: object) -> None:
    """Stand in for `polypool.pipelines.training.launch.fit`."""
    folder = run_folder(home(), tracker.run_id)
    journal = partial(open_journal, folder / OUTBOX, tracker.uri, tracker.run_id)
    (folder / "stop").unlink(missing_ok=True)
    kept = WithoutRay(folder=folder, stop=folder / "stop", journal=journal)
    train(run, kept, uri=tracker.uri, assets=assets, device=torch.device("cpu"), bar=SilentBar)


def run_one_by_one(
    work: Callable[[int], Mapping[str, Any]], count: int, *, ended: Callable[[Ended], None], **_: object
) -> None:
    """Stand in for `polypool.infra.ray.tuning.run_side_by_side`; nothing is stopped early."""
    for number in range(count):
        ended(Ended(number=number, result=work(number), error=""))
