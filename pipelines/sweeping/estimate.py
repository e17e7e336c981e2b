"""How long cells will take, from finished runs of the same recipe."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from infra.tracking import RunRecord
from tasks.run import Run


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


def spoken(time: float | None) -> str:
    """Say a time as people do."""
    if time is None:
        return "unknown"
    minutes, rest = divmod(round(time), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _scaled(record: RunRecord, epochs: int) -> float:
    """Return the time of a run with another number of epochs.

    What a run took beside training is bounded, since one that was resumed also lay idle.
    """
    whole = (record.ended or record.started) - record.started
    training = min(record.metrics.get("time/train_seconds", whole), whole)
    trained = float(record.params.get("optim.epochs", epochs))
    return training * epochs / trained + min(whole - training, max(60.0, training))
