"""What a run leaves behind: its model, what it cost, how it did, and pictures of what it learnt."""

from __future__ import annotations

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

from aggregators.base import Aggregator
from aggregators.observe import Watched
from infra.checkpoint import Progress
from infra.compute.dist import world
from tasks.base import Evaluation, Pictures
from tasks.scoring.records import VERSION_TAG, metrics_tag, queries_json

PICTURES = "figures"
"""The folder of a run's artifacts that holds its figures and pages."""
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
        """Return what was logged under a name: steps and values."""

    def member(self, name: str, described: Mapping[str, Any]) -> Log:
        """Return the log of a run of its own for one of several tasks that were trained together."""


def costs(model: nn.Module, progress: Progress, *, steps: int) -> dict[str, float]:
    """Return what a run costs: weights, those of aggregators apart, and a training step of all workers, if it had any.

    `cost/step` is in `infra.compute.cost.UNIT`, `cost/step_ms` the milliseconds of processors (or of an accelerator)
    that it was counted from, and `time/step_ms` those that passed, which say who else was at work, too.
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
    """Return a metric as text in a column: two decimals, and a third where all there is lies below 1."""
    return f"{value:9.3f}" if 0 < abs(value) <= 1 else f"{value:8.2f}"


def headline(evaluation: Evaluation) -> dict[str, float]:
    """Return the primary metric of an evaluation under names that all tasks share, so that their runs line up.

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
    """Write an evaluation's metrics and what they mean, how each query did, and its files."""
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
    version = {VERSION_TAG + evaluation.protocol: str(evaluation.protocol_version)}
    log.tags(metrics_tag(evaluation.protocol, [evaluation.primary, *evaluation.others]) | version)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{evaluation.protocol.replace('/', '-')}.npz"
        np.savez_compressed(path, **evaluation.per_query)
        path.with_suffix(".json").write_text(queries_json(evaluation.query_metrics))
        log.artifact(Path(folder), "per_query")
    _log_files(log, evaluation.files, "evaluation")


def log_pictures(log: Log | None, *makers: Callable[[], Pictures]) -> None:
    """Draw pictures and log them; every worker calls this, and the one that has a log draws them.

    An error here does not end the run: it is logged, and written into a file beside the pictures.

    Args:
        log: where they go.
        makers: each makes a record of what is drawn, or files by name.
    """
    from pipelines.pages.draw import draw  # templates and decoders, once, at the end

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
    """Return what draws a run's figures: each returns a PNG by file name, or nothing where it does not apply.

    Args:
        watched: the model's aggregators and what was seen of them.
        history: steps and values of a metric by its name; empty where it was never logged.
        title: names the run in each figure.
    """
    from pipelines.figures.coefficients import draw_coefficients  # Matplotlib, once, at the end
    from pipelines.figures.negatives import draw_negatives
    from pipelines.figures.variance import draw_variance

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
