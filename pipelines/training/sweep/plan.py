"""A sweep before it starts: which trials are done, how long the others take, and the same as Ray jobs."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polypool.infra.ray import local_cores
from polypool.infra.registry import RECIPES
from polypool.infra.spec import trust_flags
from polypool.infra.text_tables import duration
from polypool.infra.tracking import RunRecord
from polypool.pipelines.training.sweep.trials import Match, Trials, match_trials, records_of
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run, modules

_JOB = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "-m", "polypool")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every trial with its run.

    Attributes:
        matches: one for each trial.
        metrics: by recipe, the metric that chooses its best epoch.
        flags: given to all recipes.
        early_stop: whether poor trials are stopped early, and those that were are left as they are.
        uri: the tracking store.
        home: the project's.
        experiment: of the runs.
    """

    matches: tuple[Match, ...]
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    early_stop: bool = False
    uri: str = ""
    home: Path = Path()
    experiment: str = Run.experiment

    @classmethod
    def of(
        cls,
        trials: Trials,
        records: Sequence[RunRecord],
        *,
        uri: str,
        home: Path,
        experiment: str,
        early_stop: bool,
    ) -> Plan:
        """Match trials with the runs of their experiment."""
        return cls(
            matches=tuple(match_trials(uri, trials.all, records, home=home)),
            metrics=trials.metrics,
            flags=trials.flags,
            early_stop=early_stop,
            uri=uri,
            home=home,
            experiment=experiment,
        )

    @property
    def to_do(self) -> list[Match]:
        """The trials to train."""
        done = ("finished", "running", *(("stopped",) if self.early_stop else ()))
        return [match for match in self.matches if match.state not in done]

    def notes(self) -> list[str]:
        """Return a line for each trial that has a note."""
        return [
            f"{match.trial.name} is {'left alone' if match.state == 'running' else 'trained anew'}: {match.note}"
            for match in self.matches
            if match.note
        ]

    def summary(self) -> str:
        """Return one line with the numbers of trials by state."""
        counts: Counter[str] = Counter(match.state for match in self.matches)
        then = "left as they are" if self.early_stop else "to go on, since --early-stop is not given"
        skipped = f", {counts['finished']} of them finished before and skipped" if counts["finished"] else ""
        others = {
            "running": "at work now, left to whoever trains them",
            "unfinished": "interrupted before, to go on from the last checkpoint",
            "stopped": f"stopped early before, {then}",
        }
        parts = [f"{counts[state]} {text}" for state, text in others.items() if counts[state]]
        trials = f"{len(self.matches)} trial{'s' * (len(self.matches) > 1)}{skipped}"
        return "; ".join([trials, *parts, f"{len(self.to_do)} to train"])

    def timed(self, records: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """Return the runs that times are estimated from: those of the experiment, and of the usual one."""
        more = records_of(self.uri, Run.experiment) if self.experiment != Run.experiment else []
        return [*records, *more]

    def at_once(self, concurrent: int) -> int:
        """Return how many trials train at once: as many as this machine has cores for where `concurrent` is 0."""
        most = max(match.trial.run.cpus * match.trial.run.workers for match in self.matches)
        return concurrent or max(1, local_cores() // most)

    def text(self, records: Sequence[RunRecord], *, concurrent: int = 0, words: Sequence[str] = ()) -> str:
        """Return what `--dry-run` prints.

        Args:
            records: runs of the experiment.
            concurrent: trials at once; 0 for as many as this machine has cores for.
            words: of the command line, without `--dry-run`.
        """
        records, concurrent = self.timed(records), self.at_once(concurrent)
        width = max(len(match.trial.name) for match in self.matches)
        to_do = self.to_do
        times = {match.trial.name: seconds(match.trial.run, records) for match in to_do}
        lines = [self.summary(), ""]
        for match in self.matches:
            name = match.trial.name
            about = f"about {duration(times[name])}" if times.get(name) is not None else "time unknown"
            state = f"{match.state} ({match.stopped})" if match.stopped else match.state
            parts = [state, match.run_id and f"run {match.run_id}", about if name in times else ""]
            note = f"; {match.note}" if match.note else ""
            lines.append(f"  {name:<{width}}  {', '.join(part for part in parts if part)}{note}")
        if to_do:
            whole = duration(total([*times.values()], concurrent))
            lines += ["", f"estimated time, {concurrent} at once: {whole}"]
            lines += ["", "as one Ray job:", f"  {shlex.join([*_JOB, 'sweep', *words])}"]
            alone = [match for match in to_do if not match.trial.tunes]
            lines += (
                ["", "or a job for each trial:", *map("  {}".format, map(self.job, alone))] if alone else []
            )
        return "\n".join(lines)

    def job(self, match: Match) -> str:
        """Return the command line that trains one trial as a Ray job."""
        run = match.trial.run
        if match.run_id:
            return shlex.join([*_JOB, "train", "resume", match.run_id, *trust_flags(modules(run))])
        words = ["--aggregator", run.aggregator]
        if run.text_aggregator != RECIPES.get(run.recipe)().text_aggregator:
            words += ["--text-aggregator", run.text_aggregator]
        words += ["--seed", str(run.seed), "--experiment", run.experiment]
        return shlex.join([*_JOB, "train", run.recipe, *self.flags, *words])


def seconds(run: Run, records: Sequence[RunRecord]) -> float | None:
    """Estimate a run's time, scaled to its epochs; None where no run of its recipe on its data has finished.

    The median over those finished runs that have its aggregator, or else over all of them.
    """
    same = [
        record
        for record in records
        if record.status == "FINISHED"
        and record.tags.get("kind") == "train"
        and (record.tags.get("recipe"), record.tags.get("dataset")) == (run.recipe, run.data.dataset)
    ]
    closer = [record for record in same if record.tags.get("aggregator") == run.aggregator]
    times = [_scaled(record, run.optim.epochs) for record in closer or same]
    return statistics.median(times) if times else None


def total(times: Sequence[float | None], concurrent: int) -> float | None:
    """Return the time of all, `concurrent` at once; None where one is unknown."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    return max(max(known, default=0.0), sum(known) / concurrent)


def _scaled(record: RunRecord, epochs: int) -> float:
    """Return the time of a run with another number of epochs.

    The time beside training is bounded, since a resumed run also lay idle.
    """
    whole = (record.ended or record.started) - record.started
    training = min(record.metrics.get("time/train_seconds", whole), whole)
    recorded = record.params.get("optim.epochs", "")
    trained = int(recorded) if recorded.isascii() and recorded.isdigit() and int(recorded) else max(1, epochs)
    return training * epochs / trained + min(whole - training, max(60.0, training))
