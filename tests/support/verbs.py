"""Call verbs in this process, and read what `ingest` left."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np

from polypool.infra.store import FeatureStore
from polypool.tasks.datasets.corpus import Corpus


def exit_code(main: Callable[[], None], *words: object) -> int:
    """Give a verb a command line in this process and return the code that it ends with."""
    with patch.object(sys, "argv", ["verb", *map(str, words)]):
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
    return 0


def called(verb: str, *words: object) -> tuple[int, str, str]:
    """Call a verb; return the exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    main = importlib.import_module(f"polypool.pipelines.commands.{verb}").main
    with redirect_stdout(out), redirect_stderr(err):
        code = exit_code(main, *words)
    return code, out.getvalue(), err.getvalue()


def run(*arguments: object) -> tuple[int, str, str]:
    """Call `ingest`, likewise."""
    return called("ingest", *arguments)


def ingested(*arguments: object) -> str:
    """Call `ingest`, which has to succeed; return its standard output."""
    code, out, err = run(*arguments)
    assert code == 0, err
    return out


def corpus_of(out: Path, *arguments: object) -> tuple[str, Corpus, list[tuple[str, str]]]:
    """Call `ingest` into a folder; return its output, the corpus, and the skipped cases with their reasons."""
    said = ingested(*arguments, "--out", out, "--allow-skipped")
    return said, Corpus.open(out), reasons(out, "corpus.skipped.jsonl")


def refused(message: str, *arguments: object, code: int = 2, lines: int | None = None) -> None:
    """Call `ingest`, which has to end with a code and a message, of so many lines where that is said."""
    found, _, err = run(*arguments)
    assert (found, message in err, err.count("\n") if lines else None) == (code, True, lines), err


def reasons(folder: Path, name: str = "skipped.jsonl") -> list[tuple[str, str]]:
    """Return where and why of everything that was skipped."""
    path = folder / name
    lines = path.read_text().splitlines() if path.exists() else []
    return [(case["where"], case["why"]) for case in map(json.loads, lines)]


def sets_of(folder: Path) -> dict[str, np.ndarray]:
    """Return all sets of a store, after a check of its bytes."""
    store = FeatureStore.open(folder)
    store.verify()
    return {id: store[row] for row, id in enumerate(store.ids.to_pylist())}
