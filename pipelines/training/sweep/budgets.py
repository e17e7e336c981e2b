"""Tuning with equal budgets: the trials of every aggregator, scored on `val` alone, and what they choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polypool.aggregators.aggregator import Aggregator
from polypool.infra.compute.unfilled import Unfilled
from polypool.infra.errors import InputError
from polypool.infra.text_tables import ABSENT, Table
from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.record import Tuned, listed, text_of
from polypool.pipelines.training.sweep.parent import Row
from polypool.pipelines.training.sweep.plan import Plan
from polypool.pipelines.training.sweep.space import Space, plain, plain_values, read_space
from polypool.pipelines.training.sweep.trials import Trial, Trials
from polypool.pipelines.training.train import prepare
from polypool.tasks.adapter import TaskAdapter
from polypool.tasks.run import Run

SEED = 1000
"""Of the trials that choose; the runs with what was chosen have the seeds 0, 1, ..."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The trials of a tuned sweep.

    Attributes:
        trials: of all recipes and aggregators, each with `Trial.tunes`, the one nearest to the recipe first.
        space: of their settings.
        budget: trials of each aggregator, at most.
        sample: seed of the sample of each aggregator's space.
        sizes: numbers of points of the spaces, by recipe and aggregator.
        seeds: of the runs with what is chosen, their number from 0.
        early_stop: whether the worse half of an aggregator's trials is stopped early.
    """

    trials: Trials
    space: Space
    budget: int
    sample: int
    sizes: Mapping[tuple[str, str], int]
    seeds: int
    early_stop: bool

    @property
    def notes(self) -> list[str]:
        """The trials of each aggregator beside the size of its space, a line for all that have the same."""
        alike: dict[tuple[str, int], list[str]] = {}
        for (recipe, aggregator), size in self.sizes.items():
            alike.setdefault((recipe, size), []).append(aggregator)
        return [
            f"{recipe}: {min(size, self.budget)} of {size:,} points each: {', '.join(names)}"
            for (recipe, size), names in alike.items()
        ]

    @property
    def words(self) -> str:
        """The budget and the space, as tables show them."""
        words = self.tuned(self.trials.all[0], sweep="").words
        return f"{words}; and {listed(plain_values(self.space.own))}" if self.space.own else words

    def tuned(self, trial: Trial, *, sweep: str) -> Tuned:
        """Return the record of the runs that have the settings of a trial.

        Args:
            trial: that was chosen.
            sweep: the id of the sweep's run.
        """
        return Tuned(
            aggregator=trial.tunes,
            budget=self.budget,
            space=plain_values(self.space.shared),
            own=plain_values(self.space.own_of(trial.run)),
            early_stop=self.early_stop,
            chosen=trial.chosen,
            sweep=sweep,
            seed=self.sample,
        )

    def final(self, chosen: Sequence[Trial], *, sweep: str = "") -> Trials:
        """Return the runs of every seed with chosen settings, which score the test split.

        Args:
            chosen: one trial for each recipe and aggregator.
            sweep: the id of the sweep's run.
        """
        trials = [
            replace(
                trial,
                run=replace(trial.run, seed=seed, test=True),
                tuned=self.tuned(trial, sweep=sweep),
            )
            for trial in chosen
            for seed in range(self.seeds)
        ]
        return replace(self.trials, all=tuple(trials))


def make_tuning(
    trials: Trials,
    settings: Sequence[str],
    *,
    text_aggregators: bool,
    budget: int,
    sample: int,
    seeds: int,
    early_stop: bool,
) -> Tuning:
    """Return the trials of a tuned sweep, after building a model for each value that may change it.

    Args:
        trials: of the same sweep without tuning.
        settings: `SETTING=VALUE,VALUE` texts, which span the space.
        text_aggregators: whether the text's aggregators are swept, too.
        budget: trials of each aggregator and recipe.
        sample: seed of the sample of each aggregator's space.
        seeds: of the runs with what is chosen, their number from 0.
        early_stop: whether poor trials are to be stopped.

    Raises:
        InputError: unusable arguments.
        SystemExit: with code 2, after a message: an unusable value of a setting.
    """
    if budget < 1:
        raise InputError(f"--choose needs --budget, the trials of each aggregator: at least 1, not {budget}")
    runs = [trial.run for trial in trials.all if trial.run.seed == 0]
    space = read_space(
        settings,
        aggregators=[run.aggregator for run in runs],
        text_aggregators=[run.text_aggregator or run.aggregator for run in runs if text_aggregators],
        read=lambda flags: read_run(runs[0].recipe, [*trials.flags, *flags]),
    )
    models, wrong, sizes, tried = _Models(), list[str](), dict[tuple[str, str], int](), list[Trial]()
    for run in runs:
        prefixes, tunes = aggregator_prefixes(models.adapter(run)), space.unchosen(run)
        weights = bool(prefixes)
        points = space.points(run, weights=weights, budget=budget, seed=sample)
        sizes[run.recipe, tunes] = math.prod(map(len, space.options(run, weights=weights).values()))
        every = (*space.single_values(run), *points)
        made = {point: space.at(run, point, prefixes=prefixes) for point in every}
        wrong += [
            f"{run.recipe} {tunes} with {text_of(plain(point))}: {error}"
            for point, at in made.items()
            if (error := models.refused(at))
        ]
        tried += [
            Trial(run=replace(made[point], seed=SEED, test=False), tunes=tunes, chosen=plain(point))
            for point in points
        ]
    if wrong:
        raise InputError("\n  ".join(["this sweep cannot start:", *dict.fromkeys(wrong)]))
    return Tuning(
        trials=replace(trials, all=tuple(tried)),
        space=space,
        budget=budget,
        sample=sample,
        sizes=sizes,
        seeds=seeds,
        early_stop=early_stop,
    )


class _Models:
    """Checks runs of some recipes, whose data are read once; what runs have in common is checked once."""

    def __init__(self) -> None:
        self._assets: dict[str, Any] = {}
        self._checked: set[tuple[object, ...]] = set()

    def refused(self, run: Run) -> str:
        """Return why a run cannot be trained, empty where it can: by its model and optimiser, or those of others."""
        parts = {(run.recipe, run.aggregator, run.text_aggregator), (run.recipe, run.optim)}
        try:
            if not parts <= self._checked:
                self.adapter(run)
        except InputError as error:
            return str(error)
        self._checked |= parts
        return ""

    def adapter(self, run: Run) -> TaskAdapter:
        """Return the adapter of a run after all checks."""
        known = {"assets": self._assets[run.recipe]} if run.recipe in self._assets else {}
        adapter = prepare(run, **known)
        self._assets[run.recipe] = adapter.assets
        return adapter


def aggregator_prefixes(adapter: TaskAdapter) -> tuple[str, ...]:
    """Return the names of the aggregators in a task's model that have weights, without those inside others."""
    with Unfilled():
        model = adapter.model(pretrained=False)
    weights, found = [name for name, _ in model.named_parameters()], list[str]()
    for name, module in model.named_modules():
        inside = name.startswith(tuple(f"{outer}." for outer in found))
        if isinstance(module, Aggregator) and not inside:
            found.append(name)
    return tuple(name for name in found if any(weight.startswith(f"{name}.") for weight in weights))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the trials of an aggregator in a recipe chose.

    Attributes:
        recipe: the recipe.
        aggregator: without the options that were chosen.
        metric: by which, on `val`.
        space: points of the aggregator's space.
        trials: begun with, of these.
        whole: of them, trained to the end.
        default: the score of the first trial, nearest to the recipe's settings; None where it has none.
        best: the best score; None where no trial was trained to the end.
        chosen: the settings that reached it, as text; empty for none.
        run_id: the trial that did.
    """

    recipe: str
    aggregator: str
    metric: str
    space: int
    trials: int
    whole: int
    default: float | None
    best: float | None
    chosen: str
    run_id: str


def choose(
    plan: Plan, rows: Sequence[Row], *, sizes: Mapping[tuple[str, str], int]
) -> list[tuple[Choice, Trial | None]]:
    """Return what the trials of every aggregator chose, with the best trial of each; the first one of equal ones.

    Args:
        plan: of the trials.
        rows: how each of them ended.
        sizes: as of `Tuning`.
    """
    groups: dict[tuple[str, str], list[tuple[Trial, Row]]] = {}
    for match, row in zip(plan.matches, rows, strict=True):
        groups.setdefault(match.trial.rivals, []).append((match.trial, row))
    choices = []
    for (recipe, aggregator), group in groups.items():
        metric = plan.metrics[recipe]
        whole = [(row.best, trial, row) for trial, row in group if row.whole and row.best is not None]
        best, trial, row = max(whole, key=lambda each: metric.sign * each[0], default=(None, None, None))
        choice = Choice(
            recipe=recipe,
            aggregator=aggregator,
            metric=metric.name,
            space=sizes[recipe, aggregator],
            trials=len(group),
            whole=len(whole),
            default=group[0][1].best,
            best=best,
            chosen=text_of(trial.chosen) if trial else "",
            run_id=row.run_id if row else "",
        )
        choices.append((choice, trial))
    return choices


def choice_table(choices: Sequence[Choice], *, words: str) -> Table:
    """Return what was chosen for every aggregator.

    Args:
        choices: of a sweep.
        words: its budget and space.
    """
    failed = [f"{each.recipe} {each.aggregator}" for each in choices if each.best is None]
    rows = [
        (
            f"{each.recipe} {each.aggregator}",
            each.chosen or ABSENT,
            each.metric,
            *(ABSENT if score is None else f"{score:.4g}" for score in (each.default, each.best)),
            str(each.trials) if each.whole == each.trials else f"{each.whole} of {each.trials}",
            f"{each.space:,}",
        )
        for each in choices
    ]
    return Table(
        title="chosen on val",
        legend=(
            words,
            "default: the first trial, nearest to the recipe's own settings; space: points that trials are drawn from",
        ),
        header=("recipe and aggregator", "chosen", "metric", "default", "chosen's", "trials", "space"),
        rows=tuple(rows),
        notes=tuple(f"{name} is not run, as none of its trials was trained to the end" for name in failed),
    )
