"""A synthetic experiment of thousands of finished runs: their records and per-query results."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from polypool.infra.registry import RECIPES
from polypool.infra.tracking.location import database_file
from polypool.infra.tracking.tracker import flattened
from polypool.pipelines.training.recording import Described
from polypool.tasks.adapter import QueryMetric
from polypool.tasks.scoring.described import retrieval_arrays, retrieval_queries, retrieval_records
from polypool.tasks.scoring.metrics import KS, Ranks, retrieval_metrics
from polypool.tasks.scoring.records import FOLDER, metrics_json, metrics_tag, queries_json

_DIRECTIONS = "i2t", "t2i"
_UNITS = {"i2t": "image_id", "t2i": "caption_image_id"}
_MOST_KMAX = 16
_OTHERS = ("mean", "max", "gpo", "lip")
EXPERIMENT, PROTOCOL = "made up", "whole"


def make_experiment(home: Path, *, runs: int, rows: int, images: int, captions: int) -> str:
    """Record runs in a SQLite file of a folder, of which one is recorded through MLflow and the others like it.

    Args:
        home: the folder.
        runs: how many.
        rows: aggregators that they share.
        images: of the test split.
        captions: of each.

    Returns:
        The tracking URI.
    """
    uri = f"sqlite:///{home / 'mlflow.db'}"
    aggregators = [*(f"kmax(k={k})" for k in range(1, _MOST_KMAX + 1)), *_OTHERS][-rows:]
    recipe = replace(RECIPES.get("coco_region_bigru")(), experiment=EXPERIMENT, protocol=PROTOCOL)
    first = _record(uri, home, Described.of(recipe))
    with closing(sqlite3.connect(database_file(uri))) as database, database:
        copied = _Copied(database, first)
        rng = np.random.default_rng(0)
        for number in range(runs):
            seed, row = divmod(number, len(aggregators))
            run = replace(recipe, aggregator=aggregators[row], seed=seed)
            arrays, scores, queries = _scored(rng, images, captions, better=row)
            folder = copied.add(f"{number:032x}", Described.of(run), scores)
            for name in (FOLDER, "per_query"):
                (folder / name).mkdir(parents=True)
            (folder / FOLDER / f"{PROTOCOL}.json").write_bytes(_metrics())
            np.savez_compressed(folder / "per_query" / f"{PROTOCOL}.npz", **arrays)
            (folder / "per_query" / f"{PROTOCOL}.json").write_text(queries_json(queries))
        copied.remove()
    return uri


def _record(uri: str, home: Path, described: Described) -> str:
    """Record one run through MLflow, which makes its tables."""
    tracker = described.start(uri, home, more_tags=metrics_tag(PROTOCOL, _metrics()))
    tracker.log(
        {"time/train_seconds": 80.0, "cost/step": 40.0, "cost/embed": 0.1, "weights/aggregators": 32.0},
        step=1,
    )
    tracker.finish()
    return tracker.run_id


@cache
def _metrics() -> bytes:
    chance = dict.fromkeys((f"{name}/R{k}" for name in _DIRECTIONS for k in KS), 0.1) | {"rsum": 0.6}
    return metrics_json(retrieval_records(_DIRECTIONS, chance))


class _Copied:
    """Runs that differ from one that is recorded in their settings and scores.

    Args:
        database: of the runs.
        first: the id of that one.
    """

    _TABLES = ("runs", "params", "tags", "latest_metrics")

    def __init__(self, database: sqlite3.Connection, first: str) -> None:
        self._database, self._first = database, first
        database.row_factory = sqlite3.Row
        self._rows = {
            table: [*map(dict, database.execute(f"SELECT * FROM {table} WHERE run_uuid = ?", (first,)))]
            for table in self._TABLES
        }

    def add(self, run_id: str, described: Described, scores: dict[str, float]) -> Path:
        """Record another run; return the folder of its artifacts."""
        (run,) = self._rows["runs"]
        place = run["artifact_uri"].replace(self._first, run_id)
        self._insert("runs", [run | {"run_uuid": run_id, "artifact_uri": place, "name": described.name}])
        settings = dict(flattened(described.params))
        for table, values in (("params", settings), ("tags", dict(described.tags))):
            rows = [row | {"run_uuid": run_id} for row in self._rows[table]]
            self._insert(table, [row | {"value": values.get(row["key"], row["value"])} for row in rows])
        metrics = [row | {"run_uuid": run_id} for row in self._rows["latest_metrics"]]
        made = [
            metrics[0] | {"key": f"{PROTOCOL}/{name}", "value": float(score)}
            for name, score in scores.items()
        ]
        self._insert("latest_metrics", [*metrics, *made])
        return Path(place.removeprefix("file://"))

    def remove(self) -> None:
        """Forget the first one."""
        for table in (*self._TABLES[1:], "metrics", "runs"):
            self._database.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (self._first,))

    def _insert(self, table: str, rows: list[dict[str, object]]) -> None:
        names = [*rows[0]]
        into = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        self._database.executemany(into, [[row[name] for name in names] for row in rows])


def _scored(
    rng: np.random.Generator, images: int, captions: int, *, better: int
) -> tuple[dict[str, np.ndarray], dict[str, float], tuple[QueryMetric, ...]]:
    """Draw the ranks of all queries; return them, the scores, and how these follow from those."""
    owner_T = np.repeat(np.arange(images), captions)
    ranks = [
        Ranks(
            better_Q=np.floor(np.exp(rng.normal(4.0 - 0.02 * better, 1.5, n))),
            wrong_Q=np.zeros(n),
            right_Q=np.ones(n),
        )
        for n in (images, len(owner_T))
    ]
    by_name = dict(zip(_DIRECTIONS, ranks, strict=True))
    ids = np.array([f"{number:012d}" for number in range(images)])
    arrays = {_UNITS["i2t"]: ids, "caption": np.arange(len(owner_T)), _UNITS["t2i"]: ids[owner_T]}
    recalls = {f"{name}/R{k}": of.recall_Q(k) for name, of in by_name.items() for k in KS}
    arrays |= retrieval_arrays({name: of.rank_Q for name, of in by_name.items()}, recalls)
    return (
        arrays,
        retrieval_metrics(*ranks, directions=_DIRECTIONS),
        retrieval_queries(_UNITS, modality="image"),
    )
