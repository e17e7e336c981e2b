"""A run from the command line: a recipe's name and flags that change its settings.

Shared by all verbs that take a recipe; does not import torch.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tyro

from polypool.infra.errors import PLUG_IN_ERRORS, unknown
from polypool.infra.paths import absolute, here, home
from polypool.infra.registry import RECIPES, Spec
from polypool.infra.spec import trust_modules, trust_specs
from polypool.infra.storage import Url
from polypool.infra.tracking import resolve_run, tracking_uri
from polypool.pipelines.recipes.load import (
    SUFFIXES,
    Ensemble,
    named_recipe,
    published_text,
    read_run_file,
    single,
)
from polypool.tasks.run import (
    AUTO,
    REGISTRIES,
    Run,
    files,
    located,
    modules,
    refuse_incomplete,
    specs,
)


def read_config(name: str, flags: Sequence[str] = (), *, prog: str = "polypool train") -> Run | Ensemble:
    """Return the run or ensemble of a recipe with changed settings and absolute paths.

    Args:
        name: a recipe, `module:function`, or a file of a run (see `polypool.pipelines.recipes.load`).
        flags: such as `["--optim.epochs", "2", "--no-figures"]`; for a file also `--trust MODULE`.
        prog: the command, for messages and help.

    Raises:
        InputError: an unknown recipe or part.
        SystemExit: help was shown, or, with code 2, a message about a flag.
    """
    if name.endswith(SUFFIXES):
        parser = argparse.ArgumentParser(prog=f"{prog} {name}", add_help=False, allow_abbrev=False)
        parser.add_argument("--trust", action="append", default=[], metavar="MODULE")
        found, flags = parser.parse_known_args(flags)
        trust_modules(*found.trust)
        default, about = located(read_run_file(name), home), f"The run of {name}."
    else:
        trust_specs(name)
        default, about = named_recipe(name), inspect.getdoc(RECIPES.get(name)) or ""
    config = tyro.cli(
        type(default), default=default, args=list(flags), prog=f"{prog} {name}", description=about
    )
    if isinstance(config, Run):
        config = begun_with(config)
        trust_modules(*modules(config))
        check_names(config)
        config = located(config, here)
    return config


def begun_with(run: Run) -> Run:
    """Return a run with its `init` resolved to a run id, see `polypool.infra.tracking.resolve_run`."""
    return replace(run, init=resolve_run(tracking_uri(home()), run.init)) if run.init else run


def check_names(run: Run) -> None:
    """Raise InputError for a missing corpus or an unknown part of a run; imports only parts named `module:Name`.

    Objectives are not checked, because a task may define its own, as visual question answering does.
    """
    refuse_incomplete(run)
    for field, spec in specs(run):
        name = Spec.parse(spec).name if spec else ""
        registry = REGISTRIES.get(field.partition("[")[0])
        if not name or not registry or field == "objective":
            continue
        if ":" in name:
            registry.get(name)
        elif name not in (names := registry.names()):
            raise unknown(registry.kind, name, names)


def read_run(name: str, flags: Sequence[str] = (), *, prog: str = "polypool train") -> Run:
    """Return the run of a recipe as `read_config` does; an ensemble is an InputError."""
    return single(read_config(name, flags, prog=prog), name)


def recipe_list(*, everything: bool = True) -> str:
    """Return a line for each recipe, with its published numbers or its description, grouped by missing data.

    Args:
        everything: list all recipes; if False, only recipes on available data or on a user's own.
    """
    listing = RECIPES.listing()
    width = max(len(listed.name) for listed in listing)
    here = "on data that are here"
    groups: dict[str, list[str]] = {here: [], f"that need {_OWN}": []}
    for listed in listing:
        title, about = "that cannot be used", listed.error
        try:
            recipe = RECIPES.get(listed.name)
            config = recipe()
            lacking = _lacking(config)
        except PLUG_IN_ERRORS as error:
            about = about or f"{type(error).__name__}: {error}"
        else:
            title = f"that need {lacking}" if lacking else here
            about = (
                published_text(config.published, config.source)
                or (inspect.getdoc(recipe) or "").partition("\n")[0]
            )
        groups.setdefault(title, []).append(f"{listed.name:<{width}}  {about}")
    if everything:
        return _titled(groups)
    short = {title: groups[title] for title in [*groups][:2]}
    more = len(listing) - sum(map(len, short.values()))
    return f"{_titled(short)}\n\n{more} recipes on other data: polypool train --list"


def _titled(groups: Mapping[str, Sequence[str]]) -> str:
    parts = ["\n".join((f"recipes {title}:", *lines)) for title, lines in groups.items() if lines]
    return "\n\n".join(parts)


_OWN = "--corpus and --features"


def _lacking(config: Run | Ensemble) -> str:
    """Return the missing corpora of a recipe, or its other missing files: stores, weights, word vectors, role graphs.

    As text; empty if complete. URLs count as available.
    """
    if isinstance(config, Run) and config.data.dataset == AUTO:
        return _OWN
    if isinstance(config, Ensemble):
        runs = [RECIPES.get(member)() for member in config.members]
    else:
        runs = [*config.members.values()] or [config]
    for places in (
        [run.data.corpus for run in runs],
        [path for run in runs for path in files(run)],
    ):
        found = {place: absolute(place, home) for place in places}
        if absent := [name for name, at in found.items() if not isinstance(at, Url) and not at.exists()]:
            return " and ".join(absent)
    return ""
