"""Progress of a training worker, shown where the driver's output goes."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


class LineBar:
    """A progress bar for logs: a line now and then instead of one line drawn over and over.

    Takes the calls of tqdm that the training loop makes.

    Args:
        desc: what is in progress.
        total: units in all.
        unit: name of a unit.
        every: seconds between two lines.
    """

    width = 20

    def __init__(self, *, desc: str, total: int, unit: str = "step", every: float = 5.0) -> None:
        self.desc, self.total, self.unit, self.every = desc, total, unit, every
        self.done, self._resumed_at = 0, 0
        self._started = self._updated = time.monotonic()

    def update(self, n: int) -> None:
        """Count `n` more units."""
        if self.done == 0 and n > 1:  # a resumed run starts in the middle
            self._resumed_at = n
        self.done += n
        if time.monotonic() - self._updated >= self.every:
            self._show()

    def set_description(self, text: str) -> None:
        """Say something else before the bar."""
        self.desc = text

    def close(self) -> None:
        """Show the end."""
        self._show()

    def _show(self) -> None:
        self._updated = time.monotonic()
        filled = self.width * self.done // self.total
        bar = "█" * filled + "░" * (self.width - filled)
        speed = (self.done - self._resumed_at) / max(self._updated - self._started, 1e-9)
        left = self.total - self.done
        soon = f", {tqdm.format_interval(left / speed)} left" if left and speed else ""
        # not print: Ray Train logs what is printed once more
        sys.stderr.write(f"{bar} {self.done}/{self.total} {speed:.1f} {self.unit}/s{soon}  {self.desc}\n")
        sys.stderr.flush()
