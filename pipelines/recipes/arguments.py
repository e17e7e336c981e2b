"""A run from the command line: a recipe's name and flags that change its settings.

Every verb that takes a recipe reads it here; torch is not imported.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence

import tyro

from polypool.infra.errors import InputError, unknown
from polypool.infra.paths import resolve_place
from polypool.infra.registry import (
    AGGREGATORS,
    AUGMENTATIONS,
    CROSS_ENCODERS,
    ENCODERS,
    FUSIONS,
    MODELS,
    OPTIMISERS,
    RECIPES,
    REGULARISERS,
    SIMILARITIES,
    TASKS,
    Registry,
    Spec,
)
from polypool.infra.spec import trust_modules, trust_specs
from polypool.infra.storage.places import Url
from polypool.pipelines.recipes import Ensemble, published_text
from polypool.tasks.run import Run, modules
from polypool.tasks.run_files import SUFFIXES, read_run_file


def read_config(name: str, flags: Sequence[str] = (), *, prog: str = "polypool train") -> Run | Ensemble:
    """Return the run or ensemble of a recipe, with the settings that flags change.

    Args:
        name: a recipe, `module:function`, or a file of a run (see `polypool.tasks.run_files`).
        flags: such as `["--optim.epochs", "2", "--no-figures"]`; for a file also `--trust MODULE`.
        prog: the command, for messages and help.

    Raises:
        InputError: no such recipe, or no part of a name that it gives.
        SystemExit: help was shown, or, with code 2, a message about a flag.
    """
    default, about, flags = _file(name, flags) if name.endswith(SUFFIXES) else (*_recipe(name), flags)
    config = tyro.cli(
        type(default),
        default=default,
        args=list(flags),
        prog=f"{prog} {name}",
        description=about,
    )
    if isinstance(config, Run):
        trust_modules(*modules(config))
        check_names(config)
    return config


def _recipe(name: str) -> tuple[Run | Ensemble, str]:
    """Return the run or ensemble of a recipe, and its description."""
    trust_specs(name)
    recipe = RECIPES.get(name)
    return recipe(), inspect.getdoc(recipe) or ""


def _file(name: str, flags: Sequence[str]) -> tuple[Run, str, list[str]]:
    """Return the run of a file, its description, and the flags without `--trust`."""
    parser = argparse.ArgumentParser(prog=f"polypool train {name}", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE")
    found, rest = parser.parse_known_args(flags)
    trust_modules(*found.trust)
    return read_run_file(name), f"The run of {name}.", rest


def check_names(run: Run) -> None:
    """Raise InputError for the first unknown part of a run; only parts named `module:Name` are imported.

    Objectives are not checked: a task may define its own, as visual question answering does.
    """
    parts: list[tuple[Registry, str]] = [
        (TASKS, run.task),
        (ENCODERS, run.visual),
        (ENCODERS, run.text),
        (AGGREGATORS, run.aggregator),
        (AGGREGATORS, run.text_aggregator),
        (MODELS, run.model),
        (CROSS_ENCODERS, run.cross),
        (SIMILARITIES, run.similarity),
        (FUSIONS, run.fusion),
        (AUGMENTATIONS, run.data.visual_augment),
        (AUGMENTATIONS, run.data.text_augment),
        (OPTIMISERS, run.optim.optimiser),
        *((REGULARISERS, spec) for spec in run.regularisers),
    ]
    for registry, spec in parts:
        name = Spec.parse(spec).name if spec else ""
        if ":" in name:
            registry.get(name)
        elif name and name not in (names := registry.names()):
            raise unknown(registry.kind, name, names)


def read_run(name: str, flags: Sequence[str] = (), *, prog: str = "polypool train") -> Run:
    """Return the run of a recipe as `read_config` does; an ensemble is an InputError."""
    run = read_config(name, flags, prog=prog)
    if isinstance(run, Ensemble):
        raise InputError(f"recipe {name!r} is an ensemble; name one of its members: {', '.join(run.members)}")
    return run


_HERE = "on data that are here"


def recipe_list() -> str:
    """Return a line for each recipe, with its published numbers or its description, grouped by the data it lacks."""
    listing = RECIPES.listing()
    width = max(len(listed.name) for listed in listing)
    groups: dict[str, list[str]] = {_HERE: []}
    for listed in listing:
        lacking = "" if listed.error else _lacking(RECIPES.get(listed.name)())
        title = "that cannot be used" if listed.error else f"that need {lacking}" if lacking else _HERE
        line = f"{listed.name:<{width}}  {listed.error or _about(listed.name)}"
        groups.setdefault(title, []).append(line)
    return "\n\n".join("\n".join((f"recipes {title}:", *lines)) for title, lines in groups.items() if lines)


def _lacking(config: Run | Ensemble) -> str:
    """Return the missing corpora or feature stores of a recipe, as text; empty for none."""
    if isinstance(config, Ensemble):
        runs = [RECIPES.get(member)() for member in config.members]
    else:
        runs = [*config.members.values()] or [config]
    corpora = dict.fromkeys(run.data.corpus for run in runs)
    if absent := [each for each in corpora if not _is_here(each)]:
        return " and ".join(absent)
    stores = dict.fromkeys(each for run in runs for each in (run.data.features, run.data.texts) if each)
    return " and ".join(each for each in stores if not _is_here(each))


def _is_here(named: str) -> bool:
    """Whether a place exists; remote ones count as existing."""
    found = resolve_place(named)
    return isinstance(found, Url) or found.exists()


def _about(name: str) -> str:
    recipe = RECIPES.get(name)
    run = recipe()
    return published_text(run.published, run.source) or (inspect.getdoc(recipe) or "").partition("\n")[0]
