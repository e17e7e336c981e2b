"""Run commands in this process, and read the files that `ingest` wrote."""

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
    """Call a command's `main` with a command line in this process; return the exit code."""
    with patch.object(sys, "argv", ["verb", *map(str, words)]):
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
    return 0


def called(verb: str, *words: object) -> tuple[int, str, str]:
    """Run a command; return the exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    main = importlib.import_module(f"polypool.pipelines.commands.{verb}").main
    with redirect_stdout(out), redirect_stderr(err):
        code = exit_code(main, *words)
    return code, out.getvalue(), err.getvalue()


def run(*arguments: object) -> tuple[int, str, str]:
    """Run `ingest`; return the exit code, standard output and standard error."""
    return called("ingest", *arguments)


def ingested(*arguments: object) -> str:
    """Run `ingest`, which must succeed; return its standard output."""
    code, out, err = run(*arguments)
    assert code == 0, err
    return out


def corpus_of(out: Path, *arguments: object) -> tuple[str, Corpus, list[tuple[str, str]]]:
    """Run `ingest` into a folder; return its output, the corpus, and places and reasons of skipped entries."""
    said = ingested(*arguments, "--out", out, "--allow-skipped")
    return said, Corpus.open(out), reasons(out, "corpus.skipped.jsonl")


def refused(message: str, *arguments: object, code: int = 2, lines: int | None = None) -> None:
    """Assert that `ingest` ends with an exit code and a message, of `lines` lines if given."""
    found, _, err = run(*arguments)
    assert (found, message in err, err.count("\n") if lines else None) == (code, True, lines), err


def reasons(folder: Path, name: str = "skipped.jsonl") -> list[tuple[str, str]]:
    """Return the place and the reason of everything that was skipped."""
    path = folder / name
    lines = path.read_text().splitlines() if path.exists() else []
    return [(case["where"], case["why"]) for case in map(json.loads, lines)]


def sets_of(folder: Path) -> dict[str, np.ndarray]:
    """Verify the checksums of a store and return all its sets."""
    store = FeatureStore.open(folder)
    store.verify()
    return {id: store[row] for row, id in enumerate(store.ids.to_pylist())}
