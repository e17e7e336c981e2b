"""The list of an experiment's runs with their scores, progress and processes; marking dead runs as ended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from polypool.infra.locks import HeldError
from polypool.infra.text_tables import aligned, decimals, duration
from polypool.infra.tracking import RunRecord, Tracker, find_runs
from polypool.pipelines.training.record import COLLAPSED, process_of, send, take_run

Listed = Mapping[str, Any]
"""A run of a list. `score`: of the test split, None if not scored yet; `chance_normalised`: the score scaled to 0 for
chance and 100 for the best possible, None if unknown; `collapsed`: symptoms of a collapse, if any; `age`: seconds since
its start; `process`, `holder`: state and name of its process, from `polypool.pipelines.training.record.process_of`."""
_TAGS = ("task", "dataset", "features", "protocol", "aggregator", "text_aggregator", "seed")
_COLUMN = ("task", "dataset", "protocol")
"""Scores are comparable between runs with the same values."""


def list_runs(uri: str, experiment: str, *, home: Path) -> list[Listed]:
    """Return the trained runs of an experiment, and others that have not ended, such as a sweep.

    They are grouped by task, data set and protocol, the best of a group first; runs without a score come last, the
    latest first.

    Raises:
        InputError: the store does not answer, or the experiment is unknown.
    """
    listed = [
        _listed(record, home=home)
        for record in find_runs(uri, experiment, finished=False)
        if (kind := record.tags.get("kind")) == "train" or (kind and record.status == "RUNNING")
    ]

    if not listed:
        return []
    by = {**dict.fromkeys(_COLUMN, True), "chance_normalised": False, "score": False, "age": True}
    table = pd.DataFrame(listed).sort_values([*by], ascending=[*by.values()], na_position="last")
    return [listed[row] for row in table.index]


def _listed(record: RunRecord, *, home: Path) -> Listed:
    process, holder = process_of(record, home=home)
    tags, epochs = record.tags, record.params.get("optim.epochs", "")
    kind, scores = tags.get("kind", ""), {}
    for name in ("score", "chance_normalised"):
        value = record.metrics.get(f"test/{name}", math.nan)
        scores[name] = None if math.isnan(value) else value
    return {
        "run_id": record.run_id,
        "name": record.name,
        **{name: tags.get(name, "") for name in _TAGS},
        **scores,
        "state": record.status,
        "collapsed": tags.get(COLLAPSED, ""),
        "recipe": f"{f'{kind} of ' * (kind != 'train')}{tags.get('recipe', '')}",
        "epoch": int(record.metrics.get("epoch", 0)),
        "epochs": int(epochs) if epochs else None,
        "age": time.time() - record.started,
        "process": process,
        "holder": holder,
    }


def mark_dead(uri: str, runs: Sequence[Listed], *, home: Path) -> dict[str, str]:
    """End runs that MLflow shows as running without a training process; return their status by id.

    Log entries that MLflow lacks are sent first. A run that ended while MLflow was unreachable keeps its status.
    """
    ended: dict[str, str] = {}
    for run_id in [run["run_id"] for run in runs if run["process"] == "dead"]:
        try:
            tracker = Tracker.attach(uri, run_id, running=False)
            with take_run(tracker):
                send(tracker)
                if tracker.status() == "RUNNING":
                    tracker.finish("KILLED")
                ended[run_id] = tracker.status()
        except HeldError:  # another process has resumed it
            continue
    return ended


def run_table(runs: Sequence[Listed]) -> str:
    """Return the runs as a table in parts by group, with the symptoms of collapsed runs and advice on dead ones."""
    header = (
        *("run", "task", "data", "features", "aggregator", "seed", "score", "protocol", "recipe", "state"),
        *("epoch", "age", "trained by"),
    )
    ids = {run["run_id"] for run in runs}
    length = next(length for length in range(8, 99) if len({of[:length] for of in ids}) == len(ids))
    cells = []
    for run in runs:
        aggregator, text, score = run["aggregator"], run["text_aggregator"], run["score"]
        process = {"dead": "nobody", "unknown": "unknown: its folder is not here"}.get(run["process"], "")
        cells.append(
            [
                run["run_id"][:length],
                *(run[name] for name in ("task", "dataset", "features")),
                aggregator + f", text {text}" * (text != aggregator),
                run["seed"],
                "" if score is None else f"{score:.{decimals(abs(score))}f}",
                *(run[name] for name in ("protocol", "recipe")),
                run["state"] + ", collapsed" * bool(run["collapsed"]),
                f"{run['epoch']} of {'?' if run['epochs'] is None else run['epochs']}",
                duration(run["age"]),
                run["holder"].partition(":")[0] or process,
            ]
        )
    head, rule, *rows = aligned(header, cells, width=1000, left=(0, 1, 2, 3, 4, 7, 8, 9, 12))
    lines, columns = [head, rule], [[run[name] for name in _COLUMN] for run in runs]
    for before, column, row in zip([None, *columns], columns, rows, strict=False):
        lines += [""] * (before is not None and before != column) + [row]
    if collapsed := [run for run in runs if run["collapsed"]]:
        lines += ["", *(f"{run['run_id']} collapsed: {run['collapsed']}" for run in collapsed)]
    if dead := sum(run["process"] == "dead" for run in runs):
        lines += [
            "",
            f"{dead} of them shown as running {'is' if dead == 1 else 'are'} trained by nobody: --mark-dead ends "
            "dead runs, and `polypool train resume RUN`, or the command of a sweep given again, goes on with one",
        ]
    return "\n".join(lines)
