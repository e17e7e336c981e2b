"""The cells of a sweep: recipes x aggregators x text aggregators x seeds, each a complete run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from infra.errors import InputError, unknown
from infra.registry import AGGREGATORS, RECIPES, TASKS, Spec
from pipelines.sweeping.settings import Setting, read_settings, with_settings
from tasks.base import Metric
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a sweep."""

    run: Run

    @property
    def name(self) -> str:
        """What people call it."""
        run = self.run
        text = f", text {run.text_aggregator}" if run.text_aggregator else ""
        return f"{run.recipe} {run.aggregator}{text} seed {run.seed}"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All cells, recipe by recipe, and by recipe what chooses its best epoch."""

    cells: tuple[Cell, ...]
    metrics: dict[str, Metric]
    settings: tuple[Setting, ...]


def make_grid(
    recipes: Sequence[str],
    aggregators: Sequence[str],
    *,
    text_aggregators: Sequence[str] = (),
    seeds: int = 1,
    experiment: str = "polypool",
    settings: Sequence[str] = (),
) -> Grid:
    """Return the grid, whose every model has been built once, without weights.

    Args:
        recipes: names of recipes that are one run.
        aggregators: specs, of the visual side alone where there are text aggregators.
        text_aggregators: specs of the text's; where there are none, the recipe's own, else the visual one.
        seeds: 0 to this number, exclusive.
        experiment: MLflow's.
        settings: `name=value`, given to every run.

    Raises:
        InputError: what cannot be used; all of it in one message.
    """
    wrong: list[str] = []
    for option, names in (("--recipes", recipes), ("--aggregators", aggregators)):
        if not names:
            wrong.append(f"{option} names nothing; give at least one")
    if seeds < 1:
        wrong.append(f"--seeds must be at least 1, not {seeds}")
    given: tuple[Setting, ...] = ()
    runs: list[Run] = []
    with _noting(wrong):
        given = read_settings(settings)
    for name in dict.fromkeys(recipes):
        with _noting(wrong):
            runs.append(replace(with_settings(_recipe(name), given), experiment=experiment))
    visual = _aggregators(aggregators, wrong)
    text = _aggregators(text_aggregators, wrong)
    metrics = {run.recipe: metric for run in runs if (metric := _checked(run, visual, text, wrong))}
    if wrong:
        raise InputError("\n  ".join(["this sweep cannot start:", *dict.fromkeys(wrong)]))
    cells = [
        Cell(run=replace(run, aggregator=v, text_aggregator="" if t == v else t, seed=seed))
        for run in runs
        for v, t, seed in itertools.product(visual, text or [run.text_aggregator], range(seeds))
    ]
    return Grid(
        cells=tuple(cells),
        metrics=metrics,
        settings=given,
    )


@contextmanager
def _noting(wrong: list[str], where: str = "") -> Iterator[None]:
    """Add the message of an InputError to a list, instead of raising it."""
    try:
        yield
    except InputError as error:
        wrong.append(f"{where}{error}")


def _recipe(name: str) -> Run:
    if ":" not in name and name not in RECIPES.names():
        raise unknown("recipe", name, RECIPES.names())
    made = RECIPES.get(name)()
    if not isinstance(made, Run):
        raise InputError(f"recipe {name!r} is an ensemble; name the recipes of its members")
    return made


def _aggregators(specs: Sequence[str], wrong: list[str]) -> list[str]:
    """Return specs in one spelling, each once."""
    found: dict[str, None] = {}
    for spec in specs:
        with _noting(wrong):
            parsed = Spec.parse(spec)
            AGGREGATORS.get(parsed.name)
            found[str(parsed)] = None
    return [*found]


def _checked(run: Run, visual: Sequence[str], text: Sequence[str], wrong: list[str]) -> Metric | None:
    """Build the model of every pair of aggregators; the corpus is read once."""
    adapter = None
    for v, t in itertools.product(visual, text or [run.text_aggregator]):
        pair = f"{v}, text {t}" if t else v
        with _noting(wrong, f"{run.recipe} with {pair}: "), torch.device("meta"):
            cell = replace(run, aggregator=v, text_aggregator=t)
            with torch.device("cpu"):
                adapter = TASKS.build(run.task, cell, **({"assets": adapter.assets} if adapter else {}))
            adapter.model(pretrained=False)
    return adapter.primary if adapter else None
