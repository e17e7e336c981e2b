"""The trials of a sweep: recipes x aggregators x text aggregators x seeds, each a complete run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from polypool.infra.errors import InputError
from polypool.infra.registry import AGGREGATORS, Spec
from polypool.infra.spec import trust_specs
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.prepare import prepare
from polypool.tasks.adapter import Metric
from polypool.tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep."""

    run: Run

    @property
    def name(self) -> str:
        run = self.run
        text = f", text {run.text_aggregator}" if run.text_aggregator else ""
        return f"{run.recipe} {run.aggregator}{text} seed {run.seed}"


@dataclass(frozen=True, kw_only=True)
class Trials:
    """All trials, recipe by recipe.

    Attributes:
        all: the runs to train.
        metrics: by recipe, the metric that chooses its best epoch.
        flags: settings of every recipe, as words of the command line.
    """

    all: tuple[Trial, ...]
    metrics: dict[str, Metric]
    flags: tuple[str, ...]


def make_trials(
    recipes: Sequence[str],
    aggregators: Sequence[str],
    *,
    text_aggregators: Sequence[str] = (),
    seeds: int = 1,
    experiment: str = "polypool",
    flags: Sequence[str] = (),
    early_stop: bool = False,
) -> Trials:
    """Return every combination once, after building each model without weights.

    Args:
        recipes: names of recipes of one run each.
        aggregators: specs, of the visual side alone where there are text aggregators.
        text_aggregators: specs of the text side; if none, the recipe's own, else the visual one.
        seeds: their number, from 0.
        experiment: of MLflow.
        flags: settings of every run, as of `polypool train`: `["--optim.epochs", "2"]`.
        early_stop: whether poor trials are to be stopped, which needs two epochs.

    Raises:
        InputError: unusable arguments, all in one message.
        SystemExit: with code 2, after a message: a flag is unknown or has an unusable value.
    """
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in OWN:
            raise InputError(f"{name}: a sweep decides that itself; use {OWN[name]}")
    wrong: list[str] = []
    for option, names in (("--recipes", recipes), ("--aggregators", aggregators)):
        if not names:
            wrong.append(f"{option} names nothing; give at least one")
    if seeds < 1:
        wrong.append(f"--seeds must be at least 1, not {seeds}")
    runs: list[Run] = []
    for name in dict.fromkeys(recipes):
        with _noting(wrong):
            runs.append(replace(read_run(name, flags), experiment=experiment))
    visual = _aggregators(aggregators, wrong)
    text = _aggregators(text_aggregators, wrong)
    metrics = {run.recipe: metric for run in runs if (metric := _checked(run, visual, text, wrong))}
    if early_stop and (short := sorted(run.recipe for run in runs if run.optim.epochs < 2)):
        wrong.append(f"--early-stop needs at least 2 epochs, and {', '.join(short)} has fewer")
    if wrong:
        raise InputError("\n  ".join(["this sweep cannot start:", *dict.fromkeys(wrong)]))
    trials = [
        Trial(run=replace(run, aggregator=v, text_aggregator="" if t == v else t, seed=seed))
        for run in runs
        for v, t, seed in itertools.product(visual, text or [run.text_aggregator], range(seeds))
    ]
    return Trials(all=tuple(trials), metrics=metrics, flags=tuple(flags))


OWN = {
    "--aggregator": "--aggregators",
    "--text-aggregator": "--text-aggregators",
    "--seed": "--seeds",
    "--recipe": "--recipes",
}
"""Flags of a run that a sweep sets itself, and its options for them."""


@contextmanager
def _noting(wrong: list[str], where: str = "") -> Iterator[None]:
    """Append the message of an InputError to a list instead of raising it."""
    try:
        yield
    except InputError as error:
        wrong.append(f"{where}{error}")


def _aggregators(specs: Sequence[str], wrong: list[str]) -> list[str]:
    """Return specs in their canonical spelling, each once."""
    canonical: dict[str, None] = {}
    for spec in specs:
        with _noting(wrong):
            parsed = Spec.parse(spec)
            trust_specs(spec)
            AGGREGATORS.get(parsed.name)
            canonical[str(parsed)] = None
    return [*canonical]


def _checked(run: Run, visual: Sequence[str], text: Sequence[str], wrong: list[str]) -> Metric | None:
    """Build the model of every pair of aggregators; the corpus is read once."""
    adapter = None
    for v, t in itertools.product(visual, text or [run.text_aggregator]):
        pair = f"{v}, text {t}" if t else v
        with _noting(wrong, f"{run.recipe} with {pair}: "):
            trial = replace(run, aggregator=v, text_aggregator=t)
            adapter = prepare(trial, **({"assets": adapter.assets} if adapter else {}))
    return adapter.primary if adapter else None
