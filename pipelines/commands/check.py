"""`polypool check NAME`: Check a part or plug-in on small random batches before any long run.

NAME is as in a run: `gpo`, `'kmax(k=3)'`, `my_package.median:Median`. A task is checked on a small random corpus of
captions or questions; a task with other data needs `--recipe RECIPE [--overrides]`, a recipe that names them. `--list`
shows all registered parts, their origin, and which cannot be used. The exit code is 0 if every check passes, otherwise
2.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from polypool.infra.checks import summary
from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.testing import kind_of, listing, outcomes

_OWN_DATA = (
    ". It was tried on a random corpus; a task that reads data of its own is checked with --recipe RECIPE, whose "
    "data and parts it is then tried with"
)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Part to check. After `--recipe RECIPE`, its settings can be changed as in `polypool train`.

    Attributes:
        name: a name, a spec, or module:Name.
        kind: kind of the part, such as `aggregator`, if several kinds share the name.
        recipe: for a task: recipe with the data and parts for the check (default: a random corpus).
        list: show all registered parts, or only one kind with --kind.
    """

    name: tyro.conf.Positional[str] = ""
    kind: str = ""
    recipe: str = ""
    list: bool = False


@command
def main() -> None:
    """Print the outcome of each check."""
    options, overrides = tyro.cli(
        CheckOptions, prog="polypool check", description=__doc__, return_unknown_args=True
    )
    if overrides and not options.recipe:
        raise InputError(
            f"{overrides[0]!r} is no option of this command; settings can be changed with --recipe RECIPE"
        )
    if options.list:
        print(listing(options.kind))
        return
    if not options.name:
        raise InputError("name a part to check, or give --list to see what there is")
    found = []
    for outcome in outcomes(options.name, kind=options.kind, recipe=options.recipe, overrides=overrides):
        print(outcome, flush=True)
        found.append(outcome)
    if failed := summary(found):
        task = not options.recipe and (options.kind or kind_of(options.name)) == "task"
        raise InputError(f"{options.name}: {failed}{_OWN_DATA if task else ''}")
