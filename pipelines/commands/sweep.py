"""`polypool sweep --recipes A B --aggregators mean gpo --seeds 3`: Train a grid of recipes, aggregators and seeds.

Trains recipes x aggregators x seeds with Ray Tune, in parallel if there are enough cores. Flags of `polypool train`,
such as `--optim.epochs 2 --cpus 1`, change other settings of all recipes. Finished trials with the same settings are
skipped; repeat an interrupted command to resume it. With `--text-aggregators` every visual aggregator is trained with
every text aggregator, and the result is drawn as a heat map. With `--choose optim.lr=1e-3,2e-3,4e-3 --budget 6` each
aggregator gets this many tuning trials, a stratified sample of its search space, scored on `val` only, and is then
trained with its best settings. `--dry-run` shows the trials, their state, the expected time, and the equivalent Ray
jobs. A failed trial does not stop the others; the exit code is then 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from polypool.infra.errors import InputError
from polypool.infra.fields import at_least, below, validate
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.infra.registry import MOST_REPEATED
from polypool.tasks.run import NO_DEFAULT


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The grid to train.

    Attributes:
        recipes: recipes, see `polypool train --list`.
        aggregators: aggregators of both modalities, or of the visual one if there are text aggregators.
        text_aggregators: aggregators of the text, each combined with each of the others.
        seeds: number of seeds of each run.
        first_seed: the first of them.
        choose: settings to tune with their candidate values: for all aggregators, such as `optim.lr=1e-3,2e-3` and
            `aggregator.lr=0.1,1` (a learning rate factor for the aggregators' weights), or for one, such as
            `kmax.k=1,2,5`.
        budget: tuning trials per aggregator, a stratified sample of its search space.
        trial_seeds: seeds of each tuning trial, which is scored by their mean.
        sample: seed of these samples, and of the seeds of their trials.
        experiment: MLflow experiment of the runs, which is searched for finished ones.
        concurrent: maximum number of parallel trials, which share GPUs if there are fewer; 1 needs no Ray; 0 for as
            many as the cluster has cores for, by the runs' `cpus` and `workers`, and as share its GPUs by the memory
            and load of the first.
        detect: show the number of seeds needed to detect this difference of the primary metric; 0 for none.
        early_stop: stop the worse half of a recipe's trials after 1, 2, 4, ... epochs, by the score on `val` (ASHA);
            with `--choose`, of an aggregator's tuning trials.
        dry_run: show the plan without training.
    """

    recipes: tuple[str, ...]
    aggregators: tuple[str, ...]
    text_aggregators: Annotated[
        tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: those above)")
    ] = ()
    seeds: Annotated[int, at_least(1), below(MOST_REPEATED + 1)] = 1
    first_seed: Annotated[int, at_least(0)] = 0
    choose: Annotated[tuple[str, ...], NO_DEFAULT] = ()
    budget: Annotated[int, tyro.conf.arg(help_behavior_hint="(with --choose)")] = 0
    trial_seeds: Annotated[int, tyro.conf.arg(help_behavior_hint="(with --choose; default: 1)")] = 1
    sample: int = 0
    experiment: str = "polypool"
    concurrent: Annotated[int, at_least(0)] = 0
    detect: float = 0.0
    early_stop: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        validate(self)


_PARAMS = ("recipes", "aggregators", "text_aggregators", "seeds", "first_seed", "early_stop")
_TUNED = ("choose", "budget", "trial_seeds", "sample")
"""Options that are parameters of the sweep's run, and further ones of a tuned sweep's."""


@command
def main() -> None:
    """Train the missing trials, print failures, and compare."""
    options, flags = tyro.cli(
        SweepOptions, prog="polypool sweep", description=__doc__, return_unknown_args=True
    )
    if sweep(options, flags=flags, words=sys.argv[1:]):
        sys.exit(1)


def sweep(options: SweepOptions, *, flags: Sequence[str] = (), words: Sequence[str] = ()) -> bool:
    """Run a sweep and print the outcome; return whether a trial failed.

    Args:
        options: of the command line.
        flags: settings of all runs, as in `polypool train`.
        words: the command line, which `--dry-run` shows as a Ray job.

    Raises:
        InputError: invalid arguments, before anything starts.
    """
    from polypool.infra.text_tables import as_text
    from polypool.infra.tracking import to_see, tracking_uri
    from polypool.pipelines.comparison.comparison import compare_sweep, refuse_detect
    from polypool.pipelines.models.next_steps import asking
    from polypool.pipelines.training import sweep as sweeping

    refuse_detect(options.detect)
    if options.budget and not options.choose:
        raise InputError(
            "--budget is the number of tuning trials per aggregator; name their settings with --choose"
        )
    plan = sweeping.make_plan(
        options.recipes,
        options.aggregators,
        text_aggregators=options.text_aggregators,
        seeds=options.seeds,
        first_seed=options.first_seed,
        experiment=options.experiment,
        flags=flags,
        early_stop=options.early_stop,
    )
    tuning = None
    if options.choose:
        tuning = sweeping.make_tuning(
            plan,
            options.choose,
            text_aggregators=bool(options.text_aggregators),
            budget=options.budget,
            sample=options.sample,
            trial_seeds=options.trial_seeds,
        )
    if options.dry_run:
        words = [word for word in words if word not in ("--dry-run", "--dry_run")]
        print(sweeping.preview(plan, tuning, concurrent=options.concurrent, words=words))
        return False
    params = {name: getattr(options, name) for name in _PARAMS + (_TUNED if tuning else ())}
    plan, final, ends, choices = sweeping.sweep(
        plan, tuning, concurrent=options.concurrent, params=params | {"flags": tuple(flags)}
    )
    print(sweeping.outcome_text(plan, ends), end="\n\n")
    text, best = compare_sweep(final, detect=options.detect)
    print(text)
    if choices:
        print(f"\n{as_text(choices)}")
    table = ("compare", "--experiment", options.experiment, "--out", f"{options.experiment}.csv")
    uri = tracking_uri(home())
    print_next(
        *(asking(uri, best) if best else []),
        ("the tables as a file; others: compare --help", table),
        to_see(uri, options.experiment),
    )
    return any(end.state == "failed" for end in ends)
