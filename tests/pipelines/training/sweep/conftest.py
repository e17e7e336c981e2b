"""Fixtures of the tests of sweeps before they start."""

from contextlib import nullcontext

import one_by_one
import pytest
from corpora import make_corpus

from polypool.infra.registry import RECIPES
from polypool.pipelines.training import sweep as module
from polypool.tasks.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Run:
    return make_corpus(tmp_path_factory.mktemp("made"), train=16, val=8, test=12)


@pytest.fixture
def run(made, new_home, monkeypatch) -> Run:
    """A run that the recipe `tiny` returns, and a home without runs."""
    RECIPES.names()
    monkeypatch.setitem(RECIPES._parts, "tiny", lambda: made)
    return made


@pytest.fixture
def trials_here(monkeypatch):
    """Train in this process, one trial after the other: for tests of what is decided around the training."""
    monkeypatch.setattr(module, "ray_session", lambda **_: nullcontext())
    monkeypatch.setattr(module, "run_side_by_side", one_by_one.run_one_by_one)
    monkeypatch.setattr(module, "_resources", lambda matches, **_: (1, {"CPU": 1.0}))
