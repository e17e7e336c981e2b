"""A run from the command line: a recipe's name and flags that change its settings.

Every verb that takes a recipe reads it here, so that `--optim.epochs 2 --cpus 1` means the same to all of them. Nothing
of torch is imported.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence

import tyro

from infra.errors import InputError, unknown
from infra.paths import resolve_place
from infra.registry import (
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
from infra.storage.places import Url
from infra.trust import trust_modules, vouch
from pipelines.recipe import Ensemble, published_text
from tasks.run import Run, modules
from tasks.run_files import SUFFIXES, read_run_file


def read_config(
    name: str, flags: Sequence[str] = (), *, prog: str = "python -m pipelines.train"
) -> Run | Ensemble:
    """Return what a recipe makes, with the settings that flags change.

    Args:
        name: of the recipe, `module:function`, or a file of a run (see `tasks.run_files`).
        flags: such as `["--optim.epochs", "2", "--no-figures"]`; those that `prog NAME --help` shows, and of a file
            `--trust MODULE` for a module whose code it may name.
        prog: the command, in messages and in that help.

    Raises:
        InputError: there is no such recipe, or no part of a name that it gives.
        SystemExit: help was asked for and shown, or, with code 2, a flag cannot be used, which was said.
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
    """Return what a recipe makes, and what it says of itself."""
    vouch(name)
    recipe = RECIPES.get(name)
    return recipe(), inspect.getdoc(recipe) or ""


def _file(name: str, flags: Sequence[str]) -> tuple[Run, str, list[str]]:
    """Return the run of a file, what help says of it, and the flags without those that trust modules."""
    parser = argparse.ArgumentParser(
        prog=f"python -m pipelines.train {name}", add_help=False, allow_abbrev=False
    )
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE")
    found, rest = parser.parse_known_args(flags)
    trust_modules(*found.trust)
    return read_run_file(name), f"The run of {name}.", rest


def check_names(run: Run) -> None:
    """Refuse the names of parts that do not exist, without importing any part but those of `module:Name`.

    An objective is not looked up: a task may have one of its own, as visual question answering has.

    Raises:
        InputError: the first unknown name, with the nearest known one; or what is no part of its kind.
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


def read_run(name: str, flags: Sequence[str] = (), *, prog: str = "python -m pipelines.train") -> Run:
    """Return the run of a recipe, as `read_config` does.

    Raises:
        InputError: there is no such recipe, or it is an ensemble.
    """
    run = read_config(name, flags, prog=prog)
    if isinstance(run, Ensemble):
        raise InputError(f"recipe {name!r} is an ensemble; name one of its members: {', '.join(run.members)}")
    return run


_HERE = "on data that are here"


def recipe_list() -> str:
    """Return a line for each recipe: its name and the published numbers it aims at, or else what it is.

    Those whose data are here come first, then the others by the data that they need. A recipe of another package that
    cannot be used is named with the reason.
    """
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
    """Return the corpora and features of a recipe that are not here, named; empty where all are."""
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
    """Whether a place is there; one in remote storage is not asked for."""
    found = resolve_place(named)
    return isinstance(found, Url) or found.exists()


def _about(name: str) -> str:
    recipe = RECIPES.get(name)
    run = recipe()
    return published_text(run.published, run.source) or (inspect.getdoc(recipe) or "").partition("\n")[0]
