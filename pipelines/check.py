"""`python -m pipelines.check NAME`: prove a part or plug-in on made-up batches before any long run.

NAME is what a run would call it: `gpo`, `'kmax(k=3)'`, `my_package.median:Median`. A task is tried on a small corpus
that is made up, or with `--recipe RECIPE [--overrides]` on that recipe's data. `--list` shows everything that is
registered, where it comes from, and what cannot be used. The exit code is 0 where every promise is kept, else 2.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from infra.checks import Check, Outcome, run_checks
from infra.errors import InputError, command, unknown
from infra.registry import KINDS, TASKS, Listed, Spec
from infra.trust import load_part, vouch
from pipelines.config import read_run
from tasks.run import Run


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What to check. After `--recipe RECIPE`, its settings can be changed as in `pipelines.train`."""

    name: tyro.conf.Positional[str] = ""
    """A name, a spec, or module:Name."""
    kind: str = ""
    """What it is, such as `aggregator`, where the name alone does not say so."""
    recipe: str = ""
    """For a task: the recipe whose data and parts it is tried with."""
    list: bool = False
    """Show everything that is registered, of one kind where it is given."""


def check(name: str, *, kind: str = "", recipe: str = "", overrides: Sequence[str] = ()) -> Iterator[Outcome]:
    """Check a part and yield how each promise went.

    Args:
        name: a name, a spec, or `module:Name`.
        kind: what it is; empty to find out.
        recipe: for a task, the recipe whose data and parts it is tried with; made-up ones where empty.
        overrides: changes of the recipe's settings, as on the command line.

    Raises:
        InputError: there is no such part, or no such recipe.
    """
    from pipelines.checks.made_up import made_up_run

    vouch(name)
    kind = kind or kind_of(name)
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    if kind != "task":
        if recipe:
            raise InputError(f"a recipe is for a task, and {name!r} is of kind {kind}; leave --recipe out")
        yield from run_checks(_checks(name, kind))
        return
    TASKS.get(Spec.parse(name).name)
    with tempfile.TemporaryDirectory() as folder:
        run = _recipe_run(name, recipe, overrides) if recipe else made_up_run(name, Path(folder))
        yield from run_checks(adapter_checks(run))


def adapter_checks(run: Run) -> list[Check]:
    """Return the promises of the adapter of a run: those that training needs, then those of other verbs."""
    from pipelines.checks.abilities import ability_checks
    from pipelines.checks.adapter import AdapterChecks

    adapter = AdapterChecks(run)
    return [*adapter.checks(), *ability_checks(adapter)]


def kind_of(spec: str) -> str:
    """Return the kind of the part that a spec names, without importing it unless it is `module:Name`.

    Raises:
        InputError: nothing of this name, or parts of several kinds.
    """
    name = Spec.parse(spec).name
    if ":" in name:
        from pipelines.checks.kinds import kind_of_class

        return kind_of_class(name, load_part(name))
    kinds = [kind for kind, registry in KINDS.items() if name in registry.names()]
    if not kinds:
        everything = {known for registry in KINDS.values() for known in registry.names()}
        raise unknown("name", name, everything, " Or name a part as module:Name.")
    if len(kinds) > 1:
        raise InputError(
            f"{name!r} is the name of several parts; say which is meant: --kind {' or '.join(kinds)}"
        )
    return kinds[0]


def _checks(name: str, kind: str) -> list[Check]:
    from pipelines.checks.kinds import part_checks

    KINDS[kind].get(Spec.parse(name).name)  # one that cannot be imported says so by itself
    return part_checks(name, kind)


def _recipe_run(task: str, recipe: str, overrides: Sequence[str]) -> Run:
    run = read_run(recipe, overrides, prog="python -m pipelines.check --recipe")
    plain = Spec.parse(task)
    same = plain.name == Spec.parse(run.task).name and not plain.params
    return run if same else replace(run, task=task)


def listing(kind: str = "") -> str:
    """Return everything that is registered, of one kind or of all: a line each, with its origin or what is wrong."""
    if kind and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    lists = []
    for each, registry in KINDS.items():
        if kind in ("", each):
            parts = registry.listing()
            width = max((len(listed.name) for listed in parts), default=0)
            lines = [f"  {one.name:<{width}}  {_about(one)}" for one in parts]
            lists.append("\n".join([f"{registry.plural} (--kind {each})", *lines]))
    return "\n\n".join(lists)


def _about(one: Listed) -> str:
    return " and ".join(one.origins) + (f"; CANNOT BE USED: {one.error}" if one.error else "")


@command
def main() -> None:
    """Check, and say of each promise whether it is kept."""
    options, overrides = tyro.cli(
        CheckOptions, prog="python -m pipelines.check", description=__doc__, return_unknown_args=True
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
    options = replace(
        options, kind=options.kind or kind_of(options.name)
    )  # a wrong name is said before torch is imported
    failed = 0
    for outcome in check(options.name, kind=options.kind, recipe=options.recipe, overrides=overrides):
        print(outcome, flush=True)
        failed += outcome.passed is not True
    if failed:
        raise InputError(f"{options.name}: {failed} of its promises are broken or could not be looked at")


if __name__ == "__main__":
    main()
