"""The verbs of the command line, by their docstrings."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

import polypool

_COMMAND = "python -m pipelines."


def verbs(root: Path) -> str:
    """Return a section for each verb."""
    parts = []
    for verb in polypool.verbs():
        source = (root / "pipelines" / f"{verb}.py").read_text()
        parts += [f"## {verb}", with_blocks(ast.get_docstring(ast.parse(source)) or "")]
    return "\n\n".join(parts)


def with_blocks(text: str) -> str:
    """Return a docstring whose lines of nothing but a command are blocks of commands."""
    parts = []
    for are_commands, lines in groupby(text.splitlines(), key=lambda line: line.startswith(_COMMAND)):
        block = "\n".join(lines)
        parts.append(f"```sh\n{block}\n```" if are_commands else block)
    return "\n".join(parts)
