"""Tasks, protocols and public data sets, as the code has them."""

from __future__ import annotations

from docs.generate.parts import code, parameter_table, parameters_of, prose_of, table
from docs.generate.recipes import described, of_task
from infra.registry import TASKS
from pipelines.sources.sets import SETS
from tasks.abilities import (
    Answers,
    Chunked,
    CountsWords,
    ReadsInputs,
    Scores,
    Searchable,
    Watchful,
)
from tasks.scoring.protocols import PROTOCOLS

ABILITIES = {
    Chunked: "`--optim.chunk`: batches that pass the model in chunks",
    Watchful: "a run that collapses says so in its first epoch",
    Scores: "ensembles, and `analyse`",
    ReadsInputs: "exported models, of what is in no corpus",
    Searchable: "`search`",
    Answers: "questions, in `search` and of exported models",
    CountsWords: "a text encoder in common with other tasks",
}
"""What each protocol of `tasks.abilities` is for."""


def adapter(task: str) -> str:
    """Say what the adapter of a task does, and which parameters a spec gives it."""
    part = TASKS.get(task)
    parameters = parameters_of(part)
    rows = [(code(of.__name__), use) for of, use in ABILITIES.items() if of in part.__mro__]
    can = f"Its [abilities](../api/tasks.md#abilities):\n\n{table(('ability', 'what for'), rows)}"
    called = f"A run names it as `{task}`"
    called += (
        f", with parameters as in `{task}({parameters[0].name}={parameters[0].default})`."
        if parameters
        else "."
    )
    return "\n\n".join((prose_of(part), called, parameter_table(parameters), can))


def recipes(task: str) -> str:
    """Return the recipes of a task."""
    return described(of_task(task))


def protocols() -> str:
    """Return the protocols of retrieval, with the splits that they fit."""
    rows = [
        (
            code(of.name),
            of.about,
            of.split,
            "any" if of.items is None else f"{of.items:,}",
            "any" if of.captions is None else f"{of.captions:,}",
        )
        for of in PROTOCOLS.values()
    ]
    return table(("protocol", "what it is", "split", "items", "captions"), rows, right=(3, 4))


def public_sets() -> str:
    """Return the public data sets of the recipes: pages, terms, files and the commands that read them."""
    parts = []
    for name, of in SETS.items():
        rows = [(f"[`{file.name}`]({file.url})", file.size, file.use or "needed") for file in of.files]
        parts += [
            f"### {of.title}",
            f"`{name}`: [its page]({of.page}); {of.terms}.",
            table(("file", "size", "what for"), rows),
            "\n".join(f"    {command}" for command in of.commands),
        ]
    return "\n\n".join(parts)
