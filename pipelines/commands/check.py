"""`polypool check NAME`: Check a part or plug-in on small random batches before any long run.

NAME is as in a run: `gpo`, `'kmax(k=3)'`, `my_package.median:Median`. A task is tried on a small random corpus, or with
`--recipe RECIPE [--overrides]` on that recipe's data. `--list` shows everything that is registered, where it comes
from, and what cannot be used. The exit code is 0 where every check passes, else 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from polypool.infra.errors import InputError
from polypool.infra.process.command import command
from polypool.pipelines.checks.checking import check, listing


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Part to check. After `--recipe RECIPE`, its settings can be changed as in `polypool train`.

    Attributes:
        name: a name, a spec, or module:Name.
        kind: kind of the part, such as `aggregator`, where several parts have the name.
        recipe: for a task: the recipe whose data and parts it is tried with.
        list: show everything that is registered, or only one kind with --kind.
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
    failed = 0
    for outcome in check(options.name, kind=options.kind, recipe=options.recipe, overrides=overrides):
        print(outcome, flush=True)
        failed += outcome.passed is not True
    if failed:
        raise InputError(f"{options.name}: {failed} checks failed or could not be run")
