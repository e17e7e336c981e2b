"""Artifacts and final metrics of a run: costs, evaluation, per-query results and figures."""

from __future__ import annotations

import io
import logging
import math
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from polypool.aggregators.aggregator import Aggregator
from polypool.aggregators.observe import Watched
from polypool.infra.compute.dist import world
from polypool.pipelines.training.checkpoints.format import Progress
from polypool.tasks.adapter import Evaluation, Pictures
from polypool.tasks.scoring.records import (
    FOLDER,
    QUERIES,
    VERSION_TAG,
    file_name,
    metrics_json,
    metrics_tag,
    queries_json,
)

PICTURES = "figures"
"""The artifact folder of figures and pages."""
EVALUATION = "evaluation"
"""The artifact folder of an evaluation's files."""
_FAILED = "failed.txt"


class Log(Protocol):
    """Where rank 0 writes numbers and files."""

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        """Log numbers of one step."""

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file, or the files of a folder."""

    def download(self, artifact_path: str) -> Path:
        """Return where a stored file or folder can be read."""

    def history(self, name: str) -> Sequence[tuple[int, float]]:
        """Return steps and values of a metric."""


class RunLog(Log, Protocol):
    """The log of a run in training."""

    def member(self, name: str, described: Mapping[str, Any]) -> RunLog:
        """Return the log of a member run, of one of several tasks that were trained together."""


def costs(model: nn.Module, progress: Progress, *, steps: int) -> dict[str, float]:
    """Return the numbers of weights, in all and of aggregators, and the cost of a training step of all workers, if any.

    `cost/step` is in `infra.compute.cost.UNIT`, `cost/step_ms` the milliseconds of processors (or of an accelerator)
    that it was counted from, and `time/step_ms` wall-clock time, which depends on the load of the machine.
    """
    pools = [module for module in model.modules() if isinstance(module, Aggregator)]
    of_pools = {id(p): p.numel() for pool in pools for p in pool.parameters()}
    weights = {
        "weights/all": float(sum(p.numel() for p in model.parameters())),
        "weights/aggregators": float(sum(of_pools.values())),
    }
    if not steps:
        return weights
    return weights | {
        "time/step_ms": 1e3 * progress.seconds / steps,
        "cost/step_ms": 1e3 * world() * progress.cost_seconds / max(1, progress.cost_steps),
        "cost/step": world() * progress.cost / max(1, progress.cost_steps),
    }


def printed(value: float) -> str:
    """Return a metric as text in a column: two decimals, three for values up to 1."""
    return f"{value:9.3f}" if 0 < abs(value) <= 1 else f"{value:8.2f}"


def headline(evaluation: Evaluation) -> dict[str, float]:
    """Return the primary metric of an evaluation under names that all tasks share.

    Returns:
        `test/score`, and `test/chance` and `test/chance_normalised` where chance and the best possible are known;
        nothing for a split without answers.
    """
    metric = evaluation.primary
    if metric.name not in evaluation.metrics:
        return {}
    value = evaluation.metrics[metric.name]
    numbers = {"score": value, "chance": metric.chance, "chance_normalised": metric.chance_normalised(value)}
    return {f"test/{name}": number for name, number in numbers.items() if not math.isnan(number)}


def log_evaluation(log: Log, evaluation: Evaluation, *, step: int) -> None:
    """Log an evaluation: metrics with their meaning, per-query results and files."""
    costs = {
        "cost/embed": evaluation.embed_cost,
        "cost/query": evaluation.query_cost,
        "bytes/item": evaluation.item_bytes,
    }
    costs = {name: value for name, value in costs.items() if not math.isnan(value)}
    log.log(
        {f"{evaluation.protocol}/{name}": value for name, value in evaluation.metrics.items()} | costs,
        step=step,
    )
    name, described = file_name(evaluation.protocol), metrics_json([evaluation.primary, *evaluation.others])
    _log_files(log, {f"{name}.json": described}, FOLDER)
    version = {VERSION_TAG + evaluation.protocol: str(evaluation.protocol_version)}
    log.tags(metrics_tag(evaluation.protocol, described) | version)
    arrays: dict[str, Any] = {**evaluation.per_query}
    np.savez_compressed(packed := io.BytesIO(), **arrays)
    per_query = {
        f"{name}.npz": packed.getvalue(),
        f"{name}.json": queries_json(evaluation.query_metrics).encode(),
    }
    _log_files(log, per_query, QUERIES)
    _log_files(log, evaluation.files, EVALUATION)


def log_pictures(log: Log | None, *makers: Callable[[], Pictures]) -> None:
    """Draw pictures and log them; every worker calls this, and rank 0, which has a log, draws.

    An error does not end the run: it is logged and written to a file beside the pictures.

    Args:
        log: where they go.
        makers: each returns a record to draw, or files by name.
    """
    from polypool.pipelines.figures.pages.draw import draw  # templates and decoders, once, at the end

    files: dict[str, bytes] = {}
    for make in makers:
        try:
            record = make()
            files |= draw(record) if log is not None else {}
        except Exception:
            logging.getLogger(__name__).exception(
                "some pictures of this run could not be drawn; its numbers are logged"
            )
            files[_FAILED] = files.get(_FAILED, b"") + traceback.format_exc().encode()
    if log is not None:
        _log_files(log, files, PICTURES)


def run_figures(
    watched: Sequence[Watched], history: Callable[[str], Sequence[tuple[int, float]]], *, title: str
) -> list[Callable[[], dict[str, bytes]]]:
    """Return functions that draw a run's figures: each returns a PNG by file name, or nothing if not applicable.

    Args:
        watched: observed aggregators of the model.
        history: returns steps and values of a metric; empty where it was never logged.
        title: of each figure.
    """
    from polypool.pipelines.figures.coefficients import draw_coefficients  # Matplotlib, once, at the end
    from polypool.pipelines.figures.embedding_figures import draw_negatives, draw_variance

    figures: dict[str, Callable[[], bytes | None]] = {
        "pooling.png": lambda: draw_coefficients(watched, heading=f"{title}: pooling coefficients"),
        "variance.png": lambda: draw_variance(watched, heading=f"{title}: diversity of sets"),
        "negatives.png": lambda: draw_negatives(
            history("train/negatives"),
            alignment=history("train/alignment"),
            uniformity=history("train/uniformity"),
            heading=f"{title}: ADOPT",
        ),
    }
    return [partial(_drawn, name, draw) for name, draw in figures.items()]


def _drawn(name: str, draw: Callable[[], bytes | None]) -> dict[str, bytes]:
    figure = draw()
    return {} if figure is None else {name: figure}


def _log_files(log: Log, files: Mapping[str, Any], into: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            (Path(folder) / file).write_bytes(content)
        if files:
            log.artifact(Path(folder), into)
