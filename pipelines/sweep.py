"""`python -m pipelines.sweep --recipes A B --aggregators mean gpo 'kmax(k=5)' --seeds 3`: train a whole grid.

Recipes x aggregators x seeds, with Ray Tune, side by side where there are cores for it. Cells that finished before,
with the same settings, are skipped, and a sweep that was ended goes on where it stopped: give the same command again.
With `--text-aggregators` the grid has every visual with every text aggregator, and its heat map is drawn.
`--dry-run` shows the grid, what is done, the time it will take, and the same as Ray jobs. A cell that fails stops no
other; the exit code is then 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

from infra.errors import InputError, command
from infra.files import make_folder
from infra.paths import home
from infra.ray.session import local_cores
from infra.tracking import Tracker, find_runs, tracking_uri
from pipelines.compare import compare, with_bootstrap
from pipelines.comparison.per_query import read_arrays
from pipelines.sweeping.carry_out import Place, Result, alone, carry_out
from pipelines.sweeping.found import find_cells, records_of
from pipelines.sweeping.grid import Cell, Grid, make_grid
from pipelines.sweeping.pairs_figure import draw_pairs, pairs_of
from pipelines.sweeping.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train."""

    recipes: tuple[str, ...]
    """Recipes, as of `pipelines.train --list`."""
    aggregators: tuple[str, ...]
    """Aggregators of both modalities, or of the visual one where there are text aggregators."""
    text_aggregators: tuple[str, ...] = ()
    """Aggregators of the text, each trained with each of the others."""
    seeds: int = 1
    """How many seeds: 0, 1, ..."""
    set: tuple[str, ...] = ()
    """Settings for all runs, such as `optim.epochs=2 cpus=1`, named as by `pipelines.train RECIPE --help`."""
    experiment: str = "polypool"
    """MLflow experiment of the runs, where finished ones are looked for."""
    concurrent: int = 0
    """Cells at once; 0 for as many as the cluster has cores for, by the runs' `cpus` and `workers`."""
    early_stop: bool = False
    """Stop the worse half of a recipe's cells after 1, 2, 4, ... epochs, by the score on `val` (ASHA)."""
    dry_run: bool = False
    """Say what would be done, and train nothing."""


@command
def main() -> None:
    """Train what is missing, say what failed, and compare."""
    options = tyro.cli(Options, prog="python -m pipelines.sweep", description=__doc__)
    failed = sweep(options, words=sys.argv[1:])
    if failed:
        sys.exit(1)


def sweep(options: Options, *, words: Sequence[str] = ()) -> bool:
    """Carry a sweep out and print what came of it.

    Args:
        options: what to train.
        words: the command line, which `--dry-run` shows as a Ray job.

    Returns:
        Whether a cell failed.

    Raises:
        InputError: whatever cannot be used, before anything starts.
    """
    if options.concurrent < 0:
        raise InputError(f"--concurrent must be at least 1, or 0 for what fits, not {options.concurrent}")
    grid = make_grid(
        options.recipes,
        options.aggregators,
        text_aggregators=options.text_aggregators,
        seeds=options.seeds,
        experiment=options.experiment,
        settings=options.set,
    )
    short = sorted({cell.run.recipe for cell in grid.cells if cell.run.optim.epochs < 2})
    if options.early_stop and short:
        raise InputError(f"--early-stop needs at least 2 epochs, and {', '.join(short)} has one")
    place = Place(uri=tracking_uri(home()), home=home(), experiment=options.experiment)
    if options.dry_run:
        _show(options, grid, place, [word for word in words if word not in ("--dry-run", "--dry_run")])
        return False
    with alone(place.home, place.experiment):
        plan = _plan(options, grid, place)
        for found in plan.to_do:
            if found.note:
                print(f"{found.cell.name} is trained anew: {found.note}")
        result = carry_out(
            plan,
            place,
            concurrent=options.concurrent,
            metrics=grid.metrics if options.early_stop else None,
        )
        print(_told(plan, result), end="\n\n")
        _compare(grid, place)
    return bool(result.failed)


def _plan(options: Options, grid: Grid, place: Place) -> Plan:
    found = find_cells(place.uri, grid.cells, records_of(place.uri, place.experiment))
    return Plan(found=tuple(found), settings=grid.settings, early_stop=options.early_stop)


def _show(options: Options, grid: Grid, place: Place, words: Sequence[str]) -> None:
    """Print what `--dry-run` promises; times come from the sweep's own and the usual experiment."""
    plan = _plan(options, grid, place)
    experiments = dict.fromkeys((place.experiment, Options.experiment))
    records = [record for name in experiments for record in records_of(place.uri, name)]
    most = max(cell.run.cpus * cell.run.workers for cell in grid.cells)
    concurrent = options.concurrent or max(1, local_cores() // most)
    print(plan.text(records, concurrent=concurrent, words=words))


def _told(plan: Plan, result: Result) -> str:
    """Say what was done, and list what was stopped or failed."""
    lines = []
    if not plan.to_do:
        lines.append(plan.summary())
    else:
        counts = {"trained": result.trained, "stopped early": result.stopped, "failed": result.failed}
        lines.append(", ".join(f"{len(of)} {name}" for name, of in counts.items() if of or name == "trained"))
    before = [found for found in plan.found if found.state == "stopped" and found not in plan.to_do]
    stopped = [*result.stopped, *((found, found.stopped) for found in before)]
    if stopped:
        lines += ["", "stopped early, and so in no comparison:"]
        lines += [f"  {found.cell.name}: {when}, run {found.run_id}" for found, when in stopped]
    if result.failed:
        lines += ["", "failed:"]
        lines += [
            f"  {found.cell.name}{f' (run {found.run_id})' if found.run_id else ''}: {error}"
            for found, error in result.failed
        ]
    return "\n".join(lines)


def _compare(grid: Grid, place: Place) -> None:
    """Print the comparison of the experiment, keep it, and with it the heat maps of visual and text aggregators."""
    try:
        found = compare(place.uri, place.experiment)
    except InputError as error:
        print(error)
        return
    found = with_bootstrap(found, partial(read_arrays, place.uri))
    print(found.text(), end="\n\n")
    run_id = found.log(place.uri, folder=place.home)
    print(f"kept with figures in run {run_id} of {place.experiment!r}")
    tracker = Tracker.attach(place.uri, run_id, running=False)
    for path in _heat_maps(grid, place):
        tracker.artifact(path)
        print(f"visual against text aggregators: {path}, kept there, too")


def _heat_maps(grid: Grid, place: Place) -> list[Path]:
    """Draw a map for each recipe whose text aggregators were swept."""
    if not any(cell.run.text_aggregator for cell in grid.cells):
        return []
    records = {record.run_id: record for record in find_runs(place.uri, place.experiment)}
    finished = find_cells(place.uri, grid.cells, [*records.values()])
    metrics = {found.cell.name: records[found.run_id].metrics for found in finished if found.run_id}
    by_recipe: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        by_recipe.setdefault(cell.run.recipe, []).append(cell)
    folder, paths = make_folder(place.home / "runs"), []
    for recipe, cells in by_recipe.items():
        if pairs := pairs_of(cells, metrics):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{place.experiment}-{recipe}")
            paths.append(folder / f"{name}-visual_by_text.png")
            draw_pairs(pairs, paths[-1])
    return paths


if __name__ == "__main__":
    main()
