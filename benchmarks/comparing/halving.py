"""What early stopping would have changed in a tuned sweep that ran without it, from the scores of its trials on `val`.

    python -m benchmarks.comparing.halving tuned

Replays ASHA as `sweep --choose ... --early-stop` runs it with one trial at a time: after 1, 2, 4, ... epochs a trial
goes on if its score on `val` is at least the median of those that came there before it. Prints a row for each corpus:
the aggregators, for how many of them the choice stays, what the others lose of the best validation score, and the share
of all epochs that is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import mlflow
import numpy as np
import pandas as pd

from polypool.infra.paths import home
from polypool.infra.tracking import tracking_uri
from polypool.pipelines.training.sweep.budgets import SEED

BEST = "metrics.dev/best_"


@dataclass(frozen=True)
class Replay:
    """Early stopping replayed on the trials of one aggregator.

    Attributes:
        lost: of the best score.
        trained: epochs that would have been trained.
        whole: epochs of all trials.
    """

    lost: float
    trained: int
    whole: int


def replay(curves: Sequence[Sequence[float]]) -> Replay:
    """Stop trials early, given the score of each after every epoch, higher is better, in the order of their start."""
    rungs: dict[int, list[float]] = {}
    best, trained = -np.inf, 0
    for curve in curves:
        for epoch, score in enumerate(curve, start=1):
            trained += 1
            last = epoch == len(curve)
            if last or epoch & (epoch - 1):  # no power of two
                continue
            before = rungs.setdefault(epoch, [])
            stops = bool(before) and score < np.median(before)
            before.append(score)
            if stops:
                break
        else:
            best = max(best, max(curve))
    return Replay(max(map(max, curves)) - best, trained, sum(map(len, curves)))


def curves_of(trials: pd.DataFrame) -> list[list[float]]:
    """Return the scores of trials on `val` after each epoch, in the order of their start."""
    scored = (column for column in trials if column.startswith(BEST) and column != f"{BEST}epoch")
    name = next(column for column in scored if trials[column].notna().all())
    metric, client = f"dev/{name.removeprefix(BEST)}", mlflow.MlflowClient()
    ordered = trials.sort_values("start_time").run_id
    return [[point.value for point in client.get_metric_history(run, metric)] for run in ordered]


def main(experiment: str) -> None:
    """Print the table of an experiment."""
    mlflow.set_tracking_uri(tracking_uri(home()))
    trials = mlflow.search_runs(
        experiment_names=[experiment], filter_string=f"tags.seed = '{SEED}' and status = 'FINISHED'"
    )
    trials["pooling"] = trials["tags.aggregator"].str.partition("(")[0]
    epochs = trials.groupby("tags.dataset")["params.optim.epochs"].transform(lambda of: of.mode()[0])
    trials = trials[trials["params.optim.epochs"] == epochs]  # without those of a sweep that was given up
    table = []
    for corpus, of_corpus in trials.groupby("tags.dataset"):
        replays = [replay(curves_of(each)) for _, each in of_corpus.groupby("pooling")]
        lost = [each.lost for each in replays if each.lost > 0]
        share = sum(each.trained for each in replays) / sum(each.whole for each in replays)
        table.append((corpus, len(replays), len(replays) - len(lost), max(lost, default=0.0), share))
    print(
        pd.DataFrame(table, columns=["corpus", "aggregators", "same choice", "most lost", "epochs trained"])
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
