"""Descriptions of retrieval metrics, and of their means over queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from polypool.tasks.adapter import Metric, QueryMean, QueryMetric
from polypool.tasks.scoring.metrics import KS

RSUM = Metric(name="rsum", best=600.0)  # the sum of six recalls: at 1, 5 and 10, in both directions
MAP_AT_R = Metric(name="map_at_r", best=100.0, unit="%")  # the mean of mAP@R over both directions
# Metrics of each direction for queries with many right answers (`polypool.tasks.scoring.extended`).
EXTENDED = ("map_at_r", "r_precision", "R1")


def retrieval_records(
    directions: Sequence[str], chance: Mapping[str, float], *, aside: Sequence[str] = ()
) -> tuple[Metric, ...]:
    """Describe `rsum`, and the recalls and ranks of some directions, in the order of tables.

    Args:
        directions: such as `i2t`, `t2i`.
        chance: expected values for random scores, by `rsum`, `i2t/R1` and so on.
        aside: directions for which tables show only the recall at 1.
    """
    recalls = [
        Metric(
            name=f"{direction}/R{k}",
            best=100.0,
            chance=chance[f"{direction}/R{k}"],
            unit="%",
            in_tables=k == 1 or direction not in aside,
        )
        for direction in directions
        for k in KS
    ]
    ranks = [
        Metric(name=f"{direction}/{name}", higher_is_better=False, best=1.0, in_tables=False)
        for direction in directions
        for name in ("medr", "meanr")
    ]
    return (replace(RSUM, chance=chance["rsum"]), *recalls, *ranks)


def retrieval_arrays(
    ranks: Mapping[str, np.ndarray], recalls: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Name the arrays used by `retrieval_queries`.

    Args:
        ranks: by direction, the 0-based rank of each query, `(Q,)`.
        recalls: by `i2t/R1` and so on, the recall of each query from 0 to 1, `(Q,)`.
    """
    return {f"{direction}_rank": rank_Q for direction, rank_Q in ranks.items()} | {
        name.replace("/", "_"): recall_Q for name, recall_Q in recalls.items()
    }


def retrieval_queries(units: Mapping[str, str], *, modality: str) -> tuple[QueryMetric, ...]:
    """Define `rsum`, the recalls and the mean ranks as means over queries.

    Differences are tested over the items, each with its captions, in all directions.

    Args:
        units: by direction, the array with each query's item; the first two directions make up `rsum`.
        modality: of the items.
    """
    called = f"{modality}s with their captions"

    def of(name: str, *means: QueryMean) -> QueryMetric:
        return QueryMetric(name=name, means=means, units=called)

    def recall(direction: str, ks: Sequence[int]) -> QueryMean:
        scores = tuple(f"{direction}_R{k}" for k in ks)
        return QueryMean(scores=scores, units=units[direction], factor=100.0)

    first, second, *_ = units
    return (
        of("rsum", recall(first, KS), recall(second, KS)),
        *(of(f"{direction}/R{k}", recall(direction, (k,))) for direction in units for k in KS),
        *(
            of(f"{direction}/meanr", QueryMean(scores=(f"{direction}_rank",), units=array, offset=1.0))
            for direction, array in units.items()
        ),
    )


def extended_records(directions: Sequence[str], chance: Mapping[str, float]) -> tuple[Metric, ...]:
    """Describe `map_at_r`, and the metrics of some directions, in the order of tables.

    Args:
        directions: such as `i2t`, `t2i`.
        chance: expected values for random scores, by name.
    """
    names = [f"{direction}/{name}" for direction in directions for name in EXTENDED]
    return tuple(
        Metric(name=name, best=MAP_AT_R.best, chance=chance[name], unit=MAP_AT_R.unit)
        for name in (MAP_AT_R.name, *names)
    )


def extended_queries(units: Mapping[str, str], *, modality: str) -> tuple[QueryMetric, ...]:
    """Define `map_at_r` and its parts as means over queries, by arrays named like `i2t_map_at_r`.

    Args:
        units: by direction, the array with each query's item.
        modality: of the items.
    """
    called = f"{modality}s with their captions"

    def mean(direction: str, name: str, factor: float) -> QueryMean:
        return QueryMean(scores=(f"{direction}_{name}",), units=units[direction], factor=factor)

    both = tuple(mean(direction, "map_at_r", 100.0 / len(units)) for direction in units)
    return (
        QueryMetric(name=MAP_AT_R.name, means=both, units=called),
        *(
            QueryMetric(name=f"{direction}/{name}", means=(mean(direction, name, 100.0),), units=called)
            for direction in units
            for name in EXTENDED
        ),
    )
