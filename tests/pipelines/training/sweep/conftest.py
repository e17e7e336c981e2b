"""Fixtures of the tests of sweeps before they start."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpora import make_corpus

from polypool.infra.registry import RECIPES
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a small corpus of its own."""
    return make_corpus(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that the recipe `tiny` returns, and a home without runs."""
    monkeypatch.setenv("POLYPOOL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    RECIPES.names()
    monkeypatch.setitem(RECIPES._parts, "tiny", lambda: made)
    return made
