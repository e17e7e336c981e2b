"""Properties of parts, as checks on small random batches, for the tests of plug-ins and `polypool check`.

In a plug-in's tests, run each check with pytest::

    import pytest
    from polypool.testing import checks

    @pytest.mark.parametrize("check", checks("my_package.median:Median"), ids=str)
    def test_median(check):
        check()

Only the checks import torch, so that a wrong name is reported at once.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from polypool.infra.checks import Check, Outcome, run_checks
from polypool.infra.errors import InputError, unknown
from polypool.infra.registry import KINDS, Spec
from polypool.infra.spec import load_part, trust_specs
from polypool.pipelines.recipes.arguments import read_run
from polypool.tasks.run import Run


def checks(name: str, *, kind: str = "") -> list[Check]:
    """Return the checks of a part; each is called without arguments, and raises if its property is violated.

    Args:
        name: a name, a spec, or `module:Name`.
        kind: kind of the part; determined from the name if empty. For a task, see `task_checks`.

    Raises:
        InputError: an unknown part.
    """
    trust_specs(name)
    kind = kind or kind_of(name)
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    KINDS[kind].part(name)  # raises for a part that cannot be imported
    from polypool.testing.parts import checks_of

    return checks_of(name, kind)


def task_checks(run: Run) -> list[Check]:
    """Return the checks of a run's adapter: for training, then for the other verbs."""
    from polypool.testing.adapters import AdapterChecks

    return AdapterChecks(run).checks()


def outcomes(
    name: str, *, kind: str = "", recipe: str = "", overrides: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Yield the outcome of each check of a part, a task included.

    Args:
        name: a name, a spec, or `module:Name`.
        kind: kind of the part; determined from the name if empty.
        recipe: for a task, the recipe with its data and parts; a random corpus if empty.
        overrides: changes to the recipe's settings, as on the command line.

    Raises:
        InputError: an unknown part or recipe, or a recipe for a part that is not a task.
    """
    trust_specs(name)
    kind = kind or kind_of(name)
    if kind != "task":
        if recipe:
            raise InputError(f"a recipe is for a task, and {name!r} is of kind {kind}; leave --recipe out")
        yield from run_checks(checks(name, kind=kind))
        return
    KINDS[kind].part(name)
    from polypool.testing.adapters import random_run

    with tempfile.TemporaryDirectory() as folder:
        run = _recipe_run(name, recipe, overrides) if recipe else random_run(name, Path(folder))
        yield from run_checks(task_checks(run))


def kind_of(spec: str) -> str:
    """Return the kind of the part that a spec names, without importing it unless it is `module:Name`.

    Raises:
        InputError: an unknown name, parts of several kinds, or a class without a known base.
    """
    name = Spec.parse(spec).name
    if ":" in name:
        return _kind_of_class(name)
    kinds = [kind for kind, registry in KINDS.items() if name in registry.names()]
    if not kinds:
        everything = {known for registry in KINDS.values() for known in registry.names()}
        raise unknown("name", name, everything, " Or name a part as module:Name.")
    if kinds == ["task", "recipe"]:
        return "task"  # a recipe for any data is named after its task
    if len(kinds) > 1:
        raise InputError(f"{name!r} is the name of several parts; choose one: --kind {' or '.join(kinds)}")
    return kinds[0]


def _kind_of_class(name: str) -> str:
    part = load_part(name)
    if inspect.isclass(part):
        for kind, registry in KINDS.items():
            if registry.base not in ("", "torch.nn:Module") and load_part(registry.base) in part.__mro__:
                return kind
    raise InputError(f"{name} derives from no known base; give its kind: --kind {' or '.join(KINDS)}")


def _recipe_run(task: str, recipe: str, overrides: Sequence[str]) -> Run:
    run = read_run(recipe, overrides, prog="polypool check --recipe")
    plain = Spec.parse(task)
    same = plain.name == Spec.parse(run.task).name and not plain.params
    return run if same else replace(run, task=task)


def listing(kind: str = "") -> str:
    """Return a line for each registered part, of one kind or all: its origin, and why it cannot be used, if so."""
    if kind and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    lists = []
    for each in [kind] if kind else KINDS:
        parts = KINDS[each].listing()
        width = max((len(part.name) for part in parts), default=0)
        lines = [
            f"  {part.name:<{width}}  {' and '.join(part.origins)}"
            + (f"; CANNOT BE USED: {part.error}" if part.error else "")
            for part in parts
        ]
        lists.append("\n".join([f"{KINDS[each].plural} (--kind {each})", *lines]))
    return "\n\n".join(lists)
