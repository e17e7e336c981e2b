"""Recipes and the numbers they aim at, as tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from docs.generate.parts import code, table
from infra.errors import InputError
from infra.registry import RECIPES
from infra.spec import Spec
from pipelines.recipe import Ensemble
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A recipe.

    Attributes:
        name: what the command line calls it.
        about: the first line of its docstring.
        config: what it returns.
        runs: the runs that are trained: one, or those of an ensemble.
    """

    name: str
    about: str
    config: Run | Ensemble
    runs: tuple[Run, ...]

    @property
    def tasks(self) -> set[str]:
        """Names of the tasks of its runs."""
        return {Spec.parse(run.task).name for run in self.runs}

    @property
    def aggregators(self) -> set[str]:
        """Names of the aggregators of its runs, on either side, and of those that parameters name."""
        return {
            name
            for run in self.runs
            for spec in (run.aggregator, run.text_aggregator)
            for name in named(spec)
        }


def named(spec: str) -> Iterator[str]:
    """Yield the name of a spec, and those of the specs among its parameters: `gcn(then=seq2seq)` names both."""
    if not spec:
        return
    parsed = Spec.parse(spec)
    yield parsed.name
    for value in parsed.params.values():
        if isinstance(value, str):
            try:
                yield from named(value)
            except InputError:
                continue


@cache
def recipes() -> tuple[Listed, ...]:
    """Return every recipe, by name."""
    found = []
    for name, make in RECIPES.usable():
        config = make()
        runs = (
            tuple(RECIPES.get(member)() for member in config.members)
            if isinstance(config, Ensemble)
            else (config,)
        )
        about = (inspect.getdoc(make) or "").partition("\n")[0]
        found.append(Listed(name=name, about=about, config=config, runs=runs))
    return tuple(found)


def of_task(task: str) -> list[Listed]:
    """Return the recipes of a task."""
    return [recipe for recipe in recipes() if task in recipe.tasks]


def uses_aggregator(name: str) -> list[Listed]:
    """Return the recipes that use an aggregator for images, videos or texts."""
    return [recipe for recipe in recipes() if name in recipe.aggregators]


def described(listed: Sequence[Listed]) -> str:
    """Return a table of recipes: what each trains, and the published numbers it aims at with their source."""
    rows = []
    for recipe in listed:
        specs = dict.fromkeys(run.aggregator for run in recipe.runs)
        published = "<br>".join(f"`{key}` {value:g}" for key, value in recipe.config.published.items())
        rows.append(
            (
                code(recipe.name),
                recipe.about,
                ", ".join(map(code, specs)),
                f"{recipe.config.source}:<br>{published}" if published else "",
            )
        )
    return table(("recipe", "what it is", "aggregator", "published"), rows)
