"""A sweep before it starts: which trials are done, how long the others will take, and the same as Ray jobs."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infra.registry import RECIPES
from infra.tables import duration
from infra.tracking import RunRecord
from infra.trust import trust_flags
from pipelines.sweeping.matching import Match
from tasks.run import Run, modules

_JOB = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "-m")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every trial with the run that stands for it.

    Attributes:
        matches: one for each trial.
        flags: those given to all recipes.
        early_stop: whether poor trials are stopped early, and those that were stay as they are.
    """

    matches: tuple[Match, ...]
    flags: tuple[str, ...] = ()
    early_stop: bool = False

    @property
    def to_do(self) -> list[Match]:
        """The trials to train."""
        done = ("finished", "running", *(("stopped",) if self.early_stop else ()))
        return [match for match in self.matches if match.state not in done]

    def notes(self) -> list[str]:
        """Say of trials whose runs are odd what becomes of them."""
        return [
            f"{match.trial.name} is {'left alone' if match.state == 'running' else 'trained anew'}: {match.note}"
            for match in self.matches
            if match.note
        ]

    def summary(self) -> str:
        """Say in one line how many trials there are, and how many are done."""
        counts = Counter(match.state for match in self.matches)
        skipped = f", {counts['finished']} of them finished before and skipped" if counts["finished"] else ""
        parts = [f"{len(self.matches)} trial{'s' * (len(self.matches) > 1)}{skipped}"]
        if counts["running"]:
            parts.append(f"{counts['running']} at work now, left to whoever trains them")
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
            concurrent: how many trials train at once.
            words: those of the command line, without `--dry-run`.
        """
        width = max(len(match.trial.name) for match in self.matches)
        to_do = self.to_do
        times = {match.trial.name: seconds(match.trial.run, records) for match in to_do}
        lines = [self.summary(), ""]
        for match in self.matches:
            name = match.trial.name
            about = f"about {duration(times[name])}" if times.get(name) is not None else "time unknown"
            state = f"{match.state} ({match.stopped})" if match.stopped else match.state
            lines.append(
                f"  {name:<{width}}  {state}"
                + (f", run {match.run_id}" if match.run_id else "")
                + (f", {about}" if name in times else "")
                + (f"; {match.note}" if match.note else "")
            )
        if to_do:
            whole = duration(total([*times.values()], concurrent))
            lines += ["", f"estimated time, {concurrent} at once: {whole}"]
            lines += ["", "as one Ray job:", f"  {shlex.join([*_JOB, 'pipelines.sweep', *words])}"]
            lines += ["", "or a job for each trial:", *(f"  {self.job(match)}" for match in to_do)]
        return "\n".join(lines)

    def job(self, match: Match) -> str:
        """Return the line that trains one trial as a Ray job."""
        run = match.trial.run
        if match.run_id:
            return shlex.join([*_JOB, "pipelines.train", "resume", match.run_id, *trust_flags(modules(run))])
        words = ["--aggregator", run.aggregator]
        if run.text_aggregator != RECIPES.get(run.recipe)().text_aggregator:
            words += ["--text-aggregator", run.text_aggregator]
        words += ["--seed", str(run.seed), "--experiment", run.experiment]
        return shlex.join([*_JOB, "pipelines.train", run.recipe, *self.flags, *words])


def seconds(run: Run, records: Sequence[RunRecord]) -> float | None:
    """Estimate a run's time; None where no run of its recipe has finished.

    The median over runs of the same recipe and aggregator, or else of the same recipe: their training for as many
    epochs as the run has, and what they took beside training.
    """
    finished = [
        record for record in records if record.status == "FINISHED" and record.tags.get("kind") == "train"
    ]
    same = [record for record in finished if record.tags.get("recipe") == run.recipe]
    closer = [record for record in same if record.tags.get("aggregator") == run.aggregator]
    times = [_scaled(record, run.optim.epochs) for record in closer or same]
    return statistics.median(times) if times else None


def total(times: Sequence[float | None], concurrent: int) -> float | None:
    """Return the time of all, so many at once; None where one is unknown."""
    if None in times:
        return None
    longest = max(times, default=0.0)
    return max(longest, sum(times) / concurrent)


def _scaled(record: RunRecord, epochs: int) -> float:
    """Return the time of a run with another number of epochs.

    What a run took beside training is bounded, since one that was resumed also lay idle.
    """
    whole = (record.ended or record.started) - record.started
    training = min(record.metrics.get("time/train_seconds", whole), whole)
    recorded = record.params.get("optim.epochs", "")
    trained = int(recorded) if recorded.isascii() and recorded.isdigit() and int(recorded) else max(1, epochs)
    return training * epochs / trained + min(whole - training, max(60.0, training))
