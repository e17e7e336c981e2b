"""An objective that ends its worker, named by tests as `faulty:KilledOften`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from torch import Tensor

from polypool.pipelines.training.checkpoints.in_folder import UNFINISHED, last_checkpoint
from polypool.tasks.objectives.infonce import InfoNCE


class KilledOften(InfoNCE):
    """Ends its process without a word when so many epochs are trained, once for each marker.

    It waits until the last checkpoint of each run counts: which one a run goes on with is no matter of chance.
    """

    def __init__(self, *, runs: str, markers: list[str], epochs: list[float]) -> None:
        super().__init__()
        self.runs, self.ends = Path(runs), list(zip(map(Path, markers), epochs, strict=True))

    def forward(self, *args: Tensor, epoch: float) -> Tensor:
        for marker, at in self.ends:
            if epoch >= at and not marker.exists():
                while not _settled(self.runs):
                    time.sleep(0.01)
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*args, epoch=epoch)


_MADE_BY_RAY = "*/*checkpoint_20*"
"""By the year; those that are being written, too."""


def _settled(runs: Path) -> bool:
    """Return whether nothing that the runs' checkpoints are made of changes for some time, and all of it is noted."""
    before = sorted(runs.glob(_MADE_BY_RAY))
    time.sleep(0.3)
    made = [path for path in before if not path.name.startswith(UNFINISHED)]
    last = {path.parent: path.name for path in made}
    return made == sorted(runs.glob(_MADE_BY_RAY)) and all(
        getattr(last_checkpoint(folder), "name", "") == name for folder, name in last.items()
    )


class StoppedOnce(InfoNCE):
    """Sends a process SIGTERM after some epochs, the first time only, and waits until a run is asked to stop."""

    def __init__(self, *, runs: str, epoch: float, process: int) -> None:
        super().__init__()
        self.runs, self.epoch, self.process = Path(runs), epoch, process

    def forward(self, *args: Tensor, epoch: float) -> Tensor:
        if epoch >= self.epoch and not (marker := self.runs / "stopped").exists():
            marker.touch()
            os.kill(self.process, signal.SIGTERM)
            while not [*self.runs.glob("*/stop")]:
                time.sleep(0.01)
        return super().forward(*args, epoch=epoch)
