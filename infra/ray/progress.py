"""Progress of a training worker in the driver's log."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


class LineBar:
    """A progress bar for logs, with the methods of tqdm that the training loop uses: a line every few seconds."""

    width = 20

    def __init__(self, *, desc: str, total: int, unit: str = "step", every: float = 5.0) -> None:
        self.desc, self.total, self.unit, self.every = desc, total, unit, every
        self.done, self._resumed_at = 0, 0
        self._started = self._updated = time.monotonic()

    def update(self, n: int) -> None:
        if self.done == 0 and n > 1:  # a resumed run starts in the middle
            self._resumed_at = n
        self.done += n
        if time.monotonic() - self._updated >= self.every:
            self._show()

    def set_description(self, text: str) -> None:
        self.desc = text

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        self._updated = time.monotonic()
        filled = self.width * self.done // self.total
        bar = "█" * filled + "░" * (self.width - filled)
        speed = (self.done - self._resumed_at) / max(self._updated - self._started, 1e-9)
        left = self.total - self.done
        soon = f", {tqdm.format_interval(left / speed)} left" if left and speed else ""
        # Ray Train would log the output of print a second time
        sys.stderr.write(f"{bar} {self.done}/{self.total} {speed:.1f} {self.unit}/s{soon}  {self.desc}\n")
        sys.stderr.flush()
