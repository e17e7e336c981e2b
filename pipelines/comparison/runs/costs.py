"""What the aggregators of a row cost: weights, a training step, embedding an item, keeping it, and asking for it."""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Callable

from infra.errors import InputError
from infra.registry import AGGREGATORS, ENCODERS, Spec
from infra.tracking import RunRecord
from pipelines.comparison.runs.groups import Costs, Row

WEIGHTS, STEP, EMBED = "weights/aggregators", "cost/step", "cost/embed"
QUERY, BYTES = "cost/query", "bytes/item"
"""What runs log: parameters of the aggregators, and in `infra.compute.cost.UNIT` the cost of a training step, and of an
item and of a query in evaluation; and the bytes of an item's embeddings. Milliseconds that passed are no cost: they say
who else was at work on the machine."""


def costs_of(row: Row) -> Costs:
    """Return what the runs of a row logged, or what follows from it; other kinds of rows cost nothing known."""
    if row.costs is not None:
        return row.costs
    runs = row.runs if row.aggregator else ()
    logged = {"step": STEP, "embed": EMBED, "query": QUERY, "bytes": BYTES}
    return Costs(
        weights=_mean(runs, weights_of), **{name: _mean(runs, _logged(key)) for name, key in logged.items()}
    )


def weights_of(run: RunRecord) -> float:
    """Return the parameters of a run's aggregators: as logged, else as its specs say.

    What is not logged can be counted where a model has one aggregator for each modality, and the encoders' specs say
    how wide their sets are.
    """
    if WEIGHTS in run.metrics:
        return run.metrics[WEIGHTS]
    own = run.tags.get("aggregator", "")
    if run.tags.get("model") or run.params.get("model") or not own:
        return math.nan
    sides = {"visual": own, "text": run.tags.get("text_aggregator", "") or own}
    try:
        return float(sum(_count(spec, run.params.get(side, "")) for side, spec in sides.items()))
    except (
        InputError,
        KeyError,
        TypeError,
    ):  # a part that is no longer there, or whose width is not in its spec
        return math.nan


def _count(aggregator: str, encoder: str) -> int:
    import torch

    spec = Spec.parse(encoder)
    width = spec.params.get("width") or inspect.signature(ENCODERS.get(spec.name)).parameters["width"].default
    with torch.device("meta"):
        module = AGGREGATORS.build(aggregator, int(width))
    return sum(parameter.numel() for parameter in module.parameters())


def _logged(name: str) -> Callable[[RunRecord], float]:
    return lambda run: run.metrics.get(name, math.nan)


def _mean(runs: tuple[RunRecord, ...], of: Callable[[RunRecord], float]) -> float:
    return statistics.fmean(map(of, runs)) if runs else math.nan
