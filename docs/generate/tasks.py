"""Markdown sections on tasks, recipes, protocols and verbs."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs.generate.parts import (
    aggregator_list,
    code,
    first_line,
    parameter_table,
    part_list,
    prose_of,
    table,
)
from polypool.__main__ import verbs as all_verbs
from polypool.infra.registry import AGGREGATORS, KINDS, RECIPES, TASKS
from polypool.infra.spec import Spec
from polypool.pipelines import commands
from polypool.pipelines.recipes.load import Ensemble, published_text
from polypool.pipelines.recipes.published import papers
from polypool.tasks import abilities
from polypool.tasks.scoring.protocols import PROTOCOLS


def task_recipes(task: str) -> str:
    """Return the table of recipes that train a run of a task."""
    rows = []
    for name in RECIPES.built_in():
        make = RECIPES.get(name)
        config = make()
        members = config.members if isinstance(config, Ensemble) else (name,)
        runs = [RECIPES.get(member)() for member in members]
        if task in {Spec.parse(run.task).name for run in runs}:
            specs = dict.fromkeys(run.aggregator for run in runs)
            aims = published_text(config.published, config.source)
            rows.append((code(name), first_line(make), ", ".join(map(code, specs)), aims))
    return table(("recipe", "meaning", "aggregator", "published"), rows)


def paper(name: str) -> str:
    """Return the tables of a paper: each row with the command that reproduces it and its published numbers."""
    parts = []
    for of in papers()[name]:
        under = f", under `{of.protocol}`" if of.protocol else ""
        rows = [(row.row, code(f"polypool {row.words}"), *map(str, row.numbers)) for row in of.rows]
        header, title = ("row", "command", *map(code, of.columns)), of.name[0].upper() + of.name[1:]
        parts += [f"### {title}{under}", of.about, table(header, rows, right=range(2, len(header)))]
    return "\n\n".join(filter(None, parts))


def adapter(task: str) -> str:
    """Describe the adapter of a task, its parameters and its abilities."""
    part = TASKS.get(task)
    rows = [
        (code(name), first_line(ability))
        for name, ability in inspect.getmembers(abilities, inspect.isclass)
        if ability.__module__ == abilities.__name__ and ability in part.__mro__
    ]
    can = (
        f"Its [abilities](../api/tasks.md#abilities):\n\n{table(('ability', 'meaning'), rows)}"
        if rows
        else ""
    )
    return "\n\n".join(
        filter(None, (prose_of(part), f"A run names it as `{task}`.", parameter_table(part), can))
    )


def protocols() -> str:
    """Return the protocols of retrieval, with the splits that they fit."""

    def size(number: int | None) -> str:
        return "any" if number is None else f"{number:,}"

    rows = [
        (code(of.name), of.about, of.split, size(of.items), size(of.captions)) for of in PROTOCOLS.values()
    ]
    return table(("protocol", "meaning", "split", "items", "captions"), rows, right=(3, 4))


def verbs() -> str:
    folder = Path(inspect.getfile(commands)).parent
    parts = []
    for verb in all_verbs():
        about = ast.get_docstring(ast.parse((folder / f"{verb}.py").read_text())) or ""
        parts += [f"## {verb}", re.sub(r"(?m)((?:^(?:polypool|curl) .*\n?)+)", r"```sh\n\1\n```\n", about)]
    return "\n\n".join(parts)


ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, Callable[[], str]] = {
    "aggregators": partial(aggregator_list, ROOT / "aggregators/README.md"),
    **{f"adapter/{task}": partial(adapter, task) for task in TASKS.built_in()},
    **{f"recipes/{task}": partial(task_recipes, task) for task in TASKS.built_in()},
    **{f"parts/{kind}": partial(part_list, registry) for kind, registry in KINDS.items()},
    **{f"paper/{name.lower().replace(' ', '-')}": partial(paper, name) for name in papers()},
    "protocols": protocols,
    "verbs": verbs,
    "aggregator-count": lambda: str(len(AGGREGATORS.built_in())),
}
"""Sections by the name that `<!-- generated: NAME -->` gives."""
