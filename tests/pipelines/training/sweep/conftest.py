"""Fixtures for tests of sweeps."""

import pytest
from corpora import make_corpus

from polypool.infra.registry import RECIPES
from polypool.pipelines.comparison import comparison
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Run:
    return make_corpus(tmp_path_factory.mktemp("made"), train=16, val=8, test=12)


@pytest.fixture
def run(made, new_home, monkeypatch) -> Run:
    """Register a run as the recipe `tiny`, with a home without runs; return the run."""
    RECIPES.names()
    monkeypatch.setitem(RECIPES._parts, "tiny", lambda: made)
    return made


@pytest.fixture
def without_comparison(monkeypatch):
    """Leave out the tables and figures at the end of a sweep."""
    monkeypatch.setattr(comparison, "compare_sweep", lambda *_, **__: ("", None))
