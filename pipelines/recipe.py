"""How recipes are written: a function that returns a complete run, under a name and with the number it aims at."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tyro

from infra.errors import unknown
from infra.registry import RECIPES, Spec
from tasks.run import Data, Optim, Run


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Several runs whose scores are averaged, as in all the papers."""

    recipe: tyro.conf.Suppress[str] = ""
    """The recipe that this ensemble came from."""
    members: tyro.conf.Suppress[tuple[str, ...]]
    """Recipes of the members; one that comes again is trained with the next seed."""
    protocol: str
    """Protocol of the test split."""
    seed: int = 0
    """Of each member, but for those that repeat a recipe."""
    experiment: str = "polypool"
    """MLflow experiment of the members and of the ensemble."""
    published: tyro.conf.Suppress[Mapping[str, float]] = field(default_factory=dict)
    """The numbers that the recipe aims at, by protocol and metric, such as `{"coco-5k/rsum": 421.9}`."""
    source: tyro.conf.Suppress[str] = ""
    """Where they are printed."""

    def seeded(self) -> list[tuple[str, int]]:
        """Return each member's recipe and seed."""
        return [(name, self.seed + self.members[:i].count(name)) for i, name in enumerate(self.members)]


Recipe = TypeVar("Recipe", Run, Ensemble)


def recipe(
    name: str, *, published: Mapping[str, float] | None = None, source: str = ""
) -> Callable[[Callable[[], Recipe]], Callable[[], Recipe]]:
    """Register a function as the recipe `name`; what it returns carries the name and the published numbers.

    Args:
        name: what the command line calls it.
        published: the numbers it aims at, by protocol and metric as tracking names them, such as
            `{"coco-5k/rsum": 421.9}`; those of another split have its name in front. None where nobody published one.
        source: where they are printed.
    """

    def register(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
        @functools.wraps(make)
        def named() -> Recipe:
            return dataclasses.replace(make(), recipe=name, published=dict(published or {}), source=source)

        return RECIPES.register(name)(named)

    return register


def published_text(published: Mapping[str, float], source: str) -> str:
    """Return published numbers in a line, such as `VSE-infinity, table 9: f30k-1k/rsum 498.1`; empty without any."""
    numbers = ", ".join(f"{name} {value:g}" for name, value in published.items())
    return f"{source}: {numbers}" if numbers else ""


def derive(run: Run, **changes: Any) -> Run:
    """Return a run with some settings changed; a dict changes some of a part's: `optim={"epochs": 80}`.

    Raises:
        InputError: a setting that there is not, or a value that a run refuses.
    """
    for name, value in changes.items():
        part = getattr(run, name, None)
        if isinstance(value, dict) and isinstance(part, Data | Optim):
            changes[name] = _replaced(part, value, f"setting of a run's {name}")
    return _replaced(run, changes, "setting of a run")


def join(share: str = "", *, optim: Optim, **members: tuple[float, Run]) -> Run:
    """Return a run that trains the tasks of several runs together.

    Args:
        share: what their models have in common; see `tasks.joint.Joint`, whose default holds where it is empty.
        optim: how all are trained.
        members: by a name of the task's own, how often it is drawn, and its run; aggregators are those of the first.
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
