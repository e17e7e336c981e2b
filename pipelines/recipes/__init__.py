"""Recipes: functions that return complete runs, registered by name with their published numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tyro

from polypool.infra.errors import InputError, unknown
from polypool.infra.paths import home
from polypool.infra.registry import RECIPES, Spec
from polypool.infra.spec import trust_modules
from polypool.tasks.run import PLACES, Data, Optim, Run, located, modules


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Several runs whose scores are averaged, as in all the papers."""

    recipe: tyro.conf.Suppress[str] = ""
    """Name of its recipe."""
    members: tyro.conf.Suppress[tuple[str, ...]]
    """Recipes of the members; a repeated one is trained with the next seed."""
    protocol: str
    """Protocol of the test split."""
    seed: int = 0
    """Seed of each member, except those that repeat a recipe."""
    experiment: str = "polypool"
    """MLflow experiment of the members and of the ensemble."""
    published: tyro.conf.Suppress[Mapping[str, float]] = field(default_factory=dict)
    """Published numbers by protocol and metric, such as `{"coco-5k/rsum": 421.9}`."""
    source: tyro.conf.Suppress[str] = ""
    """Source of the published numbers."""

    def seeded(self) -> list[tuple[str, int]]:
        """Return each member's recipe and seed."""
        return [(name, self.seed + self.members[:i].count(name)) for i, name in enumerate(self.members)]


Recipe = TypeVar("Recipe", Run, Ensemble)


def recipe(
    name: str, *, published: Mapping[str, float] | None = None, source: str = ""
) -> Callable[[Callable[[], Recipe]], Callable[[], Recipe]]:
    """Register a function as the recipe `name`; the run that it returns gets the name and the published numbers.

    Args:
        name: name on the command line.
        published: published numbers by protocol and metric, such as `{"coco-5k/rsum": 421.9}`; those of another split
            begin with its name.
        source: table and paper of these numbers.
    """

    def register(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
        @functools.wraps(make)
        def named() -> Recipe:
            return dataclasses.replace(make(), recipe=name, published=dict(published or {}), source=source)

        return RECIPES.register(name)(named)

    return register


def named_recipe(name: str) -> Run | Ensemble:
    """Return what a recipe returns, whose relative paths start at the project's home.

    Raises:
        InputError: no such recipe.
    """
    config = RECIPES.get(name)()
    if isinstance(config, Ensemble):
        return config
    trust_modules(*modules(config))
    return located(config, home)


def named_run(name: str) -> Run:
    """Return the run of a recipe, as `named_recipe` does.

    Raises:
        InputError: no such recipe, or one of an ensemble.
    """
    config = named_recipe(name)
    if isinstance(config, Ensemble):
        raise InputError(
            f"recipe {name!r} is an ensemble; name one of its members: {', '.join(config.members)}"
        )
    return config


def variants(source: str, rows: Mapping[str, tuple[str, Run | Ensemble, Mapping[str, float]]]) -> None:
    """Register a table of recipes that share a source.

    Args:
        source: table and paper of their published numbers.
        rows: by name, what is shown of a recipe, its run or ensemble, and the published numbers, if any.
    """
    for name, (about, config, published) in rows.items():

        def make(config: Any = config) -> Any:
            return config

        make.__doc__, make.__name__, make.__qualname__ = about, name, name
        recipe(name, published=published, source=source if published else "")(make)


def published_text(published: Mapping[str, float], source: str) -> str:
    """Return published numbers in a line, such as `VSE-infinity, table 9: f30k-1k/rsum 498.1`; empty without any."""
    numbers = ", ".join(f"{name} {value:g}" for name, value in published.items())
    return f"{source}: {numbers}" if numbers else ""


def derive(run: Run, **changes: Any) -> Run:
    """Return a run with some settings changed.

    Args:
        run: its settings.
        changes: settings of `Run`; a dict changes fields of `data` or `optim`: `optim={"epochs": 80}`. The places of
            the data stand for themselves, as on the command line: `corpus="data/mine"`.

    Raises:
        InputError: an unknown setting, or a value out of range.
    """
    places = {name: str(changes.pop(name)) for name in PLACES if name in changes}
    if places:
        data = changes.get("data", {})
        changes["data"] = (data if isinstance(data, dict) else vars(data)) | places
    for name, value in changes.items():
        part = getattr(run, name, None)
        if isinstance(value, dict) and isinstance(part, Data | Optim):
            changes[name] = _replaced(part, value, f"setting of a run's {name}")
    return _replaced(run, changes, "setting of a run")


def join(share: str = "", *, optim: Optim, **members: tuple[float, Run]) -> Run:
    """Return a run that trains the tasks of several runs together.

    Args:
        share: modules that the models share; see `tasks.joint.Joint`, whose default is used where it is empty.
        optim: optimisation of all tasks.
        members: weight and run of each task, by a name; aggregators are those of the first.
    """
    runs = {name: run for name, (_, run) in members.items()}
    first = next(iter(runs.values()))
    params = {name: weight for name, (weight, _) in members.items()} | ({"share": share} if share else {})
    return Run(
        task=str(Spec("joint", params)),
        data=Data(dataset="+".join(dict.fromkeys(run.data.dataset for run in runs.values())), corpus=""),
        visual="",
        text="",
        protocol="joint",
        aggregator=first.aggregator,
        text_aggregator=first.text_aggregator,
        optim=optim,
        members=runs,
    )


def _replaced(record: Any, changes: Mapping[str, Any], kind: str) -> Any:
    names = [field.name for field in dataclasses.fields(record)]
    for name in changes:
        if name not in names:
            raise unknown(kind, name, names)
    return dataclasses.replace(record, **changes)
