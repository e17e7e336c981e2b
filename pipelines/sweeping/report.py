"""What a sweep prints: how long it will take, how its trials ended, how they compare."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from infra.errors import InputError
from infra.files import make_folder
from infra.ray.session import local_cores
from infra.tracking import Artifacts, RunRecord, Tracker, find_runs
from pipelines.comparison.comparison import compare, judged
from pipelines.comparison.runs.per_query import read_queries
from pipelines.sweeping.execution import Place, Result
from pipelines.sweeping.matching import match_trials, records_of
from pipelines.sweeping.pairs_figure import draw_pairs, pair_means
from pipelines.sweeping.plan import Plan
from pipelines.sweeping.trials import Trial, Trials
from tasks.run import Run


def estimate(
    plan: Plan, place: Place, records: Sequence[RunRecord], *, concurrent: int, words: Sequence[str]
) -> str:
    """Return what `--dry-run` shows; times come from the runs of the sweep's own and the usual experiment.

    Args:
        plan: the trials.
        place: where they are recorded.
        records: the runs of the sweep's own experiment.
        concurrent: trials at once; where 0, as many as this machine has cores for.
        words: those of the command line, without `--dry-run`.
    """
    if place.experiment != Run.experiment:
        records = [*records, *records_of(place.uri, Run.experiment)]
    most = max(match.trial.run.cpus * match.trial.run.workers for match in plan.matches)
    concurrent = concurrent or max(1, local_cores() // most)
    return plan.text(records, concurrent=concurrent, words=words)


def outcome(plan: Plan, result: Result) -> str:
    """Say what was done, and list what was stopped or failed."""
    lines = []
    if not plan.to_do:
        lines.append(plan.summary())
    else:
        counts = {"trained": result.trained, "stopped early": result.stopped, "failed": result.failed}
        lines.append(", ".join(f"{len(of)} {name}" for name, of in counts.items() if of or name == "trained"))
    before = [match for match in plan.matches if match.state == "stopped" and match not in plan.to_do]
    stopped = [*result.stopped, *((match, match.stopped) for match in before)]
    if stopped:
        lines += ["", "stopped early, and so in no comparison:"]
        lines += [f"  {match.trial.name}: {when}, run {match.run_id}" for match, when in stopped]
    if result.failed:
        lines += ["", "failed:"]
        lines += [
            f"  {match.trial.name}{f' (run {match.run_id})' if match.run_id else ''}: {error}"
            for match, error in result.failed
        ]
    return "\n".join(lines)


def show_comparison(trials: Trials, place: Place, *, detect: float = 0.0) -> None:
    """Print the comparison of the experiment, log it, and with it the heat maps of visual and text aggregators.

    Args:
        trials: of the sweep.
        place: where they are recorded.
        detect: a difference of which to say how many seeds it needs; 0 for none.
    """
    try:
        comparison = compare(place.uri, place.experiment)
    except InputError as error:
        print(error)
        return
    comparison = replace(judged(comparison, partial(read_queries, Artifacts(place.uri))), detect=detect)
    print(comparison.text(), end="\n\n")
    run_id = comparison.log(place.uri, folder=place.home)
    print(f"kept with figures in run {run_id} of {comparison.kept_in!r}")
    tracker = Tracker.attach(place.uri, run_id, running=False)
    for path in _heat_maps(trials, place):
        tracker.artifact(path)
        print(f"visual against text aggregators: {path}, kept there, too")


def _heat_maps(trials: Trials, place: Place) -> list[Path]:
    """Draw a map for each recipe whose text aggregators were swept."""
    if not any(trial.run.text_aggregator for trial in trials.all):
        return []
    records = {record.run_id: record for record in find_runs(place.uri, place.experiment)}
    finished = match_trials(place.uri, trials.all, [*records.values()], home=place.home)
    metrics = {match.trial.name: records[match.run_id].metrics for match in finished if match.run_id}
    by_recipe: dict[str, list[Trial]] = {}
    for trial in trials.all:
        by_recipe.setdefault(trial.run.recipe, []).append(trial)
    folder, paths = make_folder(place.home / "runs"), []
    for recipe, of_recipe in by_recipe.items():
        if means := pair_means(of_recipe, metrics, metric=trials.metrics[recipe]):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{place.experiment}-{recipe}")
            paths.append(folder / f"{name}-visual_by_text.png")
            draw_pairs(means, paths[-1])
    return paths
