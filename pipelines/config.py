"""A run from the command line: a recipe's name and flags that change its settings.

Every verb that takes a recipe reads it here, so that `--optim.epochs 2 --cpus 1` means the same to all of them. Nothing
of torch is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import tyro

from infra.errors import InputError
from infra.registry import RECIPES
from pipelines.recipe import Ensemble, published_text
from tasks.run import Run


def read_config(
    name: str, flags: Sequence[str] = (), *, prog: str = "python -m pipelines.train"
) -> Run | Ensemble:
    """Return what a recipe makes, with the settings that flags change.

    Args:
        name: of the recipe, or `module:function`.
        flags: such as `["--optim.epochs", "2", "--no-figures"]`; those that `prog NAME --help` shows.
        prog: the command, in messages and in that help.

    Raises:
        InputError: there is no such recipe.
        SystemExit: help was asked for and shown, or, with code 2, a flag cannot be used, which was said.
    """
    recipe = RECIPES.get(name)
    default = recipe()
    return tyro.cli(
        type(default),
        default=default,
        args=list(flags),
        prog=f"{prog} {name}",
        description=inspect.getdoc(recipe) or "",
    )


def read_run(name: str, flags: Sequence[str] = (), *, prog: str = "python -m pipelines.train") -> Run:
    """Return the run of a recipe, as `read_config` does.

    Raises:
        InputError: there is no such recipe, or it is an ensemble.
    """
    run = read_config(name, flags, prog=prog)
    if isinstance(run, Ensemble):
        raise InputError(f"recipe {name!r} is an ensemble; name one of its members: {', '.join(run.members)}")
    return run


def recipe_list() -> str:
    """Return a line for each recipe: its name and the published numbers it aims at, or else what it is.

    A recipe of another package that cannot be used is named with the reason.
    """
    listing = RECIPES.listing()
    width = max(len(listed.name) for listed in listing)
    return "\n".join(f"{listed.name:<{width}}  {listed.error or _about(listed.name)}" for listed in listing)


def _about(name: str) -> str:
    recipe = RECIPES.get(name)
    run = recipe()
    return published_text(run.published, run.source) or (inspect.getdoc(recipe) or "").partition("\n")[0]
