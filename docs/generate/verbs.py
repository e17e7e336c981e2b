"""The verbs of the command line, by their docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

import polypool


def verbs(root: Path) -> str:
    """Return a section for each verb."""
    parts = []
    for verb in polypool.verbs():
        source = (root / "pipelines" / f"{verb}.py").read_text()
        parts += [f"## {verb}", ast.get_docstring(ast.parse(source)) or ""]
    return "\n\n".join(parts)
