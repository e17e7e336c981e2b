"""A sweep before it starts: which cells are done, what the others will take, and the same as Ray jobs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infra.registry import RECIPES
from infra.tracking import RunRecord
from pipelines.sweeping.estimate import seconds, spoken, total
from pipelines.sweeping.found import Found
from pipelines.sweeping.settings import Setting

_JOB = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "-m")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every cell with what was found of it.

    Attributes:
        found: one for each cell of the grid.
        settings: those given to all.
        early_stop: whether poor cells are stopped early, and those that were stay as they are.
    """

    found: tuple[Found, ...]
    settings: tuple[Setting, ...] = ()
    early_stop: bool = False

    @property
    def to_do(self) -> list[Found]:
        """The cells to train."""
        done = ("finished", "stopped") if self.early_stop else ("finished",)
        return [found for found in self.found if found.state not in done]

    def summary(self) -> str:
        """Say in one line how many cells there are, and how many are done."""
        counts = Counter(found.state for found in self.found)
        skipped = f", {counts['finished']} of them finished before and skipped" if counts["finished"] else ""
        parts = [f"{len(self.found)} cell{'s' * (len(self.found) > 1)}{skipped}"]
        if counts["unfinished"]:
            parts.append(f"{counts['unfinished']} interrupted before, to go on from the last checkpoint")
        if counts["stopped"]:
            then = "left as they are" if self.early_stop else "to go on, since --early-stop is not given"
            parts.append(f"{counts['stopped']} stopped early before, {then}")
        parts.append(f"{len(self.to_do)} to train")
        return "; ".join(parts)

    def text(self, records: Sequence[RunRecord], *, concurrent: int, words: Sequence[str]) -> str:
        """Return what `--dry-run` prints.

        Args:
            records: runs to estimate times from.
            concurrent: how many cells train at once.
            words: those of the command line, without `--dry-run`.
        """
        width = max(len(found.cell.name) for found in self.found)
        to_do = self.to_do
        times = {found.cell.name: seconds(found.cell.run, records) for found in to_do}
        lines = [self.summary(), ""]
        for found in self.found:
            name = found.cell.name
            about = f"about {spoken(times[name])}" if times.get(name) is not None else "time unknown"
            state = f"{found.state} ({found.stopped})" if found.stopped else found.state
            lines.append(
                f"  {name:<{width}}  {state}"
                + (f", run {found.run_id}" if found.run_id else "")
                + (f", {about}" if name in times else "")
                + (f"; {found.note}" if found.note else "")
            )
        if to_do:
            whole = spoken(total([*times.values()], concurrent))
            lines += ["", f"estimated time, {concurrent} at once: {whole}"]
            lines += ["", "as one Ray job:", f"  {shlex.join([*_JOB, 'pipelines.sweep', *words])}"]
            lines += ["", "or a job for each cell:", *(f"  {self.job(found)}" for found in to_do)]
        return "\n".join(lines)

    def job(self, found: Found) -> str:
        """Return the line that trains one cell as a Ray job."""
        if found.run_id:
            return shlex.join([*_JOB, "pipelines.train", "resume", found.run_id])
        run = found.cell.run
        words = ["--aggregator", run.aggregator]
        if run.text_aggregator != RECIPES.get(run.recipe)().text_aggregator:
            words += ["--text-aggregator", run.text_aggregator]
        words += ["--seed", str(run.seed), "--experiment", run.experiment]
        words += [word for setting in self.settings for word in setting.flags]
        return shlex.join([*_JOB, "pipelines.train", run.recipe, *words])
