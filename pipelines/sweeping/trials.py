"""The trials of a sweep: recipes x aggregators x text aggregators x seeds, each a complete run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from infra.errors import InputError
from infra.registry import AGGREGATORS, Spec
from infra.trust import vouch
from pipelines.config import read_run
from pipelines.training.runs import prepare
from tasks.base import Metric
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a sweep."""

    run: Run

    @property
    def name(self) -> str:
        """What people call it."""
        run = self.run
        text = f", text {run.text_aggregator}" if run.text_aggregator else ""
        return f"{run.recipe} {run.aggregator}{text} seed {run.seed}"


@dataclass(frozen=True, kw_only=True)
class Trials:
    """All trials, recipe by recipe.

    Attributes:
        all: the runs to train.
        metrics: by recipe, what chooses its best epoch.
        flags: settings given to every recipe, as words of the command line.
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
) -> Trials:
    """Return every combination once; each model has been built, without weights.

    Args:
        recipes: names of recipes that are one run.
        aggregators: specs, of the visual side alone where there are text aggregators.
        text_aggregators: specs of the text's; where there are none, the recipe's own, else the visual one.
        seeds: 0 to this number, exclusive.
        experiment: MLflow's.
        flags: settings of every run, as of `pipelines.train`: `["--optim.epochs", "2"]`.

    Raises:
        InputError: what cannot be used; all of it in one message.
        SystemExit: with code 2, a flag that no run has or whose value cannot be used, which was said.
    """
    _refuse_own(flags)
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
"""Flags of a run that a sweep decides itself, and the options that say so."""


def _refuse_own(flags: Sequence[str]) -> None:
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in OWN:
            raise InputError(f"{name}: a sweep decides that itself; use {OWN[name]}")


@contextmanager
def _noting(wrong: list[str], where: str = "") -> Iterator[None]:
    """Add the message of an InputError to a list, instead of raising it."""
    try:
        yield
    except InputError as error:
        wrong.append(f"{where}{error}")


def _aggregators(specs: Sequence[str], wrong: list[str]) -> list[str]:
    """Return specs in one spelling, each once."""
    canonical: dict[str, None] = {}
    for spec in specs:
        with _noting(wrong):
            parsed = Spec.parse(spec)
            vouch(spec)
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
