"""`python -m pipelines.sweep --recipes A B --aggregators mean gpo 'kmax(k=5)' --seeds 3`: train a whole grid.

Recipes x aggregators x seeds, with Ray Tune, side by side where there are cores for it. Other settings of the recipes
are changed by the flags of `pipelines.train`, such as `--optim.epochs 2 --cpus 1`. Trials that finished before, with
the same settings, are skipped, and a sweep that was ended goes on where it stopped: give the same command again.
With `--text-aggregators` every visual aggregator is trained with every text aggregator, and a heat map of them is
drawn. `--dry-run` shows the trials, what is done, the time it will take, and the same as Ray jobs. A trial that fails
stops no other; the exit code is then 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from infra.errors import InputError, command
from infra.paths import home


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to train."""

    recipes: tuple[str, ...]
    """Recipes, as of `pipelines.train --list`."""
    aggregators: tuple[str, ...]
    """Aggregators of both modalities, or of the visual one where there are text aggregators."""
    text_aggregators: Annotated[
        tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: those above)")
    ] = ()
    """Aggregators of the text, each trained with each of the others."""
    seeds: int = 1
    """How many seeds: 0, 1, ..."""
    experiment: str = "polypool"
    """MLflow experiment of the runs, where finished ones are looked for."""
    concurrent: int = 0
    """Trials at once; 0 for as many as the cluster has cores for, by the runs' `cpus` and `workers`."""
    detect: float = 0.0
    """A difference of the primary metric, of which to say how many more seeds it needs; 0 for none."""
    early_stop: bool = False
    """Stop the worse half of a recipe's trials after 1, 2, 4, ... epochs, by the score on `val` (ASHA)."""
    dry_run: bool = False
    """Say what would be done, and train nothing."""


_ASKED = ("recipes", "aggregators", "text_aggregators", "seeds", "early_stop")
"""Options that the run of a sweep shows as its parameters."""


@command
def main() -> None:
    """Train what is missing, say what failed, and compare."""
    options, flags = tyro.cli(
        SweepOptions, prog="python -m pipelines.sweep", description=__doc__, return_unknown_args=True
    )
    failed = sweep(options, flags=flags, words=sys.argv[1:])
    if failed:
        sys.exit(1)


def sweep(options: SweepOptions, *, flags: Sequence[str] = (), words: Sequence[str] = ()) -> bool:
    """Carry a sweep out and print what came of it.

    Args:
        options: what to train.
        flags: settings of all runs, as of `pipelines.train`.
        words: the command line, which `--dry-run` shows as a Ray job.

    Returns:
        Whether a trial failed.

    Raises:
        InputError: whatever cannot be used, before anything starts.
    """
    from infra.tracking import RunRecord, tracking_uri
    from pipelines.comparison.comparison import refuse_detect
    from pipelines.sweeping.execution import Place, alone
    from pipelines.sweeping.matching import match_trials, records_of
    from pipelines.sweeping.parent import Parent, carried_out
    from pipelines.sweeping.plan import Plan
    from pipelines.sweeping.report import estimate, outcome, show_comparison
    from pipelines.sweeping.trials import make_trials

    refuse_detect(options.detect)
    if options.concurrent < 0:
        raise InputError(f"--concurrent must be at least 1, or 0 for what fits, not {options.concurrent}")
    trials = make_trials(
        options.recipes,
        options.aggregators,
        text_aggregators=options.text_aggregators,
        seeds=options.seeds,
        experiment=options.experiment,
        flags=flags,
    )
    short = sorted({trial.run.recipe for trial in trials.all if trial.run.optim.epochs < 2})
    if options.early_stop and short:
        raise InputError(f"--early-stop needs at least 2 epochs, and {', '.join(short)} has fewer")
    place = Place(uri=tracking_uri(home()), home=home(), experiment=options.experiment)

    def plan(records: Sequence[RunRecord]) -> Plan:
        matches = match_trials(place.uri, trials.all, records, home=place.home)
        return Plan(matches=tuple(matches), flags=trials.flags, early_stop=options.early_stop)

    if options.dry_run:
        words = [word for word in words if word not in ("--dry-run", "--dry_run")]
        records = records_of(place.uri, place.experiment)
        print(estimate(plan(records), place, records, concurrent=options.concurrent, words=words))
        return False
    with alone(place.home, place.experiment):
        records = records_of(place.uri, place.experiment)
        agreed = plan(records)
        print("".join(f"{line}\n" for line in agreed.notes()), end="")
        asked = {name: getattr(options, name) for name in _ASKED} | {"flags": tuple(flags)}
        metrics = trials.metrics if options.early_stop else None
        parent = Parent.open(agreed, trials, place, records, params=asked)
        result = carried_out(agreed, place, parent, concurrent=options.concurrent, metrics=metrics)
        print(outcome(agreed, result), end="\n\n")
        show_comparison(trials, place, detect=options.detect)
    return bool(result.failed)


if __name__ == "__main__":
    main()
