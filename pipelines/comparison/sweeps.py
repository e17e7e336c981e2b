"""Comparison at the end of a sweep: of its whole experiment, with heat maps of pairs of aggregators."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder
from polypool.infra.paths import home
from polypool.infra.tracking import RunRecord, Tracker, find_runs, tracking_uri
from polypool.pipelines.comparison.charts import draw_pairs
from polypool.pipelines.comparison.comparison import compare
from polypool.pipelines.figures.style import save
from polypool.pipelines.training.sweep import Plan, match_trials


def compare_sweep(plan: Plan, *, detect: float = 0.0) -> tuple[str, RunRecord | None]:
    """Compare the experiment of a sweep, log the comparison, and return it as text, and its best run if there is one.

    Args:
        plan: of the sweep.
        detect: a difference for which to name the seeds that it needs; 0 for none.
    """
    try:
        comparison = compare(uri := tracking_uri(home()), plan.experiment)
    except InputError as error:
        return str(error), None
    comparison = replace(comparison, detect=detect)
    run_id = comparison.log(uri, folder=home())
    lines = [comparison.text(), "", f"kept with figures in run {run_id} of {comparison.kept_in!r}"]
    tracker = Tracker.attach(uri, run_id, running=False)
    for path in _heat_maps(plan):
        tracker.artifact(path)
        lines.append(f"visual against text aggregators: {path}, kept there, too")
    return "\n".join(lines), comparison.best_run


def _heat_maps(plan: Plan) -> list[Path]:
    """Draw a heat map for each recipe whose text aggregators were swept."""
    if not any(trial.run.text_aggregator for trial in plan.trials):
        return []
    records = {record.run_id: record for record in find_runs(tracking_uri(home()), plan.experiment)}
    trials = match_trials(plan.trials, [*records.values()])
    folder, paths = make_folder(home() / "runs"), []
    for recipe, metric in plan.metrics.items():
        scored = [
            (trial.run, records[trial.run_id].metrics if trial.run_id else {})
            for trial in trials
            if trial.run.recipe == recipe
        ]
        if figure := draw_pairs(scored, metric=metric):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{plan.experiment}-{recipe}")
            paths.append(folder / f"{name}-visual_by_text.png")
            save(figure, paths[-1])
    return paths
