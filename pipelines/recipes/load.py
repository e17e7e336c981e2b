"""Recipes: complete runs by name, from the YAML files of this folder; user files have the same form.

A recipe gives the settings of `polypool.tasks.run.Run` that differ from its `base` (another recipe) or from the
defaults. Its `members` are the runs of a joint run by name, or a list of recipes whose scores an ensemble averages.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tyro
import yaml

from polypool.infra.errors import InputError, unknown
from polypool.infra.files import existing
from polypool.infra.paths import home
from polypool.infra.registry import RECIPES
from polypool.infra.spec import Spec, refuse_untrusted, trust_modules
from polypool.pipelines.recipes.published import PUBLISHED, papers, rows_of, together
from polypool.tasks.run import (
    PLACES,
    Data,
    Optim,
    Run,
    from_json,
    located,
    modules,
    portable,
    specs,
    to_json,
)

SUFFIXES = (".yaml", ".yml", ".json")
_BASE = "base"
_PARTS = ("data", "optim")  # settings that hold settings, each of which a recipe may change


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Several runs whose scores are averaged, as in VSE-infinity, VSE+2AD and DivE."""

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
    """Register a function of a plug-in as the recipe `name`; its run gets the name and the published numbers.

    Args:
        name: name on the command line.
        published: published numbers by protocol and metric, such as `{"coco-5k/rsum": 421.9}`; for another split than
            test, prefixed with its name.
        source: table and paper of these numbers.
    """

    def register(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
        @functools.wraps(make)
        def named() -> Recipe:
            return dataclasses.replace(make(), recipe=name, published=dict(published or {}), source=source)

        return RECIPES.register(name)(named)

    return register


def read_run_file(path: str | Path) -> Run:
    """Return the run of a YAML or JSON file: a recipe with changes, or a complete run such as `run.json`.

    Raises:
        InputError: a missing file, invalid YAML or JSON, a base that is not a recipe of one run, or settings that
            `polypool.tasks.run.from_json` rejects, such as code of an untrusted module.
    """
    path = existing(path, what="a run in YAML or JSON")
    try:
        values = yaml.load(path.read_bytes(), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as YAML or JSON: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected settings such as `base: coco_mini` and `aggregator: gpo`")
    return from_json(_with_base(values, where=str(path)), where=str(path))


def named_recipe(name: str) -> Run | Ensemble:
    """Return the run or ensemble of a recipe; its relative paths refer to the project's home.

    Raises:
        InputError: an unknown recipe.
    """
    config = RECIPES.get(name)()
    if isinstance(config, Ensemble):
        return config
    trust_modules(*modules(config))
    return located(config, home)


def named_run(name: str) -> Run:
    """Return the run of a recipe; see `named_recipe`.

    Raises:
        InputError: an unknown recipe, or an ensemble.
    """
    return single(named_recipe(name), name)


def single(config: Run | Ensemble, name: str) -> Run:
    """Return a run unchanged; raise InputError for an ensemble."""
    if isinstance(config, Ensemble):
        members = ", ".join(config.members)
        raise InputError(f"recipe {name!r} is an ensemble; name one of its members: {members}")
    return config


def with_published(run: Run) -> Run:
    """Return a run with the published numbers of the rows with the same parts and data set, and no others.

    Other settings, such as epochs, are not compared. A plug-in's recipe is its own only row. Numbers with a user's own
    source are kept.
    """
    if run.recipe not in RECIPES.names():
        return run
    recipe = single(RECIPES.get(run.recipe)(), run.recipe)
    if run.source not in ("", recipe.source) and run.source.partition(",")[0] not in papers():
        return run
    if run.recipe in _BUILT_IN:
        rows = rows_of(run.recipe)
        numbers, source = together(
            of for of in rows if _parts(derive(recipe, **of[-1].changes)) == _parts(run)
        )
    else:
        numbers, source = (recipe.published, recipe.source) if _parts(recipe) == _parts(run) else ({}, "")
    return dataclasses.replace(run, published=numbers, source=source)


def _parts(run: Run) -> tuple[Any, ...]:
    """Return the key of published rows: the data set, and the parts, with paths relative to the home."""
    return run.data.dataset, *(
        (name, spec and Spec.parse(spec)) for name, spec in specs(portable(run, home()))
    )


def published_text(published: Mapping[str, float], source: str) -> str:
    """Return the published sums and accuracies in one line, or the other numbers if there are none.

    Such as `VSE-infinity, table 9: f30k-1k/rsum 498.1`; empty without numbers.
    """
    main = {name: value for name, value in published.items() if name.endswith(("/rsum", "/accuracy"))}
    numbers = ", ".join(f"{name} {value:g}" for name, value in (main or published).items())
    return f"{source}: {numbers}" if numbers else ""


def derive(run: Run, **changes: Any) -> Run:
    """Return a run with some settings changed.

    Args:
        run: its settings.
        changes: settings of `Run`; a dict changes fields of `data` or `optim`: `optim={"epochs": 80}`. Paths of the
            data need no group, as on the command line: `corpus="data/mine"`.

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


def _replaced(record: Any, changes: Mapping[str, Any], kind: str) -> Any:
    names = [field.name for field in dataclasses.fields(record)]
    for name in changes:
        if name not in names:
            raise unknown(kind, name, names)
    return dataclasses.replace(record, **changes)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads `1e-3` as a number, which YAML 1.1 does not."""


_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def _with_base(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the settings of a file merged into its base, including its members'."""
    settings = dict(values)
    if isinstance(members := settings.get("members"), Mapping):
        settings["members"] = {
            name: _with_base(member, where=f"{where}: members.{name}")
            if isinstance(member, Mapping)
            else member
            for name, member in members.items()
        }
    base = settings.pop(_BASE, None)
    if base is None:
        return settings
    base = str(base)
    refuse_untrusted(base, where=f"{where}: {_BASE}")
    try:
        recipe = single(RECIPES.get(base)(), base)
    except InputError as error:
        raise InputError(f"{where}: {_BASE}: {error}") from error
    of_base = to_json(recipe)
    parts = {name: settings[name] for name in _PARTS if isinstance(settings.get(name), Mapping)}
    return of_base | settings | {name: of_base.get(name, {}) | part for name, part in parts.items()}


def _register(name: str, entry: Mapping[str, Any]) -> None:
    """Register a built-in recipe, with the published numbers of the rows that it reproduces unchanged."""

    def make() -> Run | Ensemble:
        numbers, source = together(found for found in rows_of(name) if not found[-1].changes)
        settings = {**entry, "recipe": name, "published": numbers, "source": source}
        del settings["about"]
        settings = _with_base(settings, where=f"recipe {name}")
        if isinstance(settings.get("members"), list):
            settings["members"] = tuple(settings["members"])
            return Ensemble(**settings)
        return from_json(settings, where=f"recipe {name}")

    make.__doc__, make.__name__, make.__qualname__ = entry["about"], name, name
    RECIPES.register(name)(make)


_BUILT_IN: dict[str, dict[str, Any]] = {}
for _file in sorted({*Path(__file__).parent.glob("*.yaml")} - {PUBLISHED}):
    _entries = yaml.load(_file.read_bytes(), _Loader)
    assert not _entries.keys() & _BUILT_IN.keys(), f"{_file}: a name of another file"
    _BUILT_IN |= _entries
for _name, _entry in _BUILT_IN.items():
    _register(_name, _entry)
