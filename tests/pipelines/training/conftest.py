"""Fixtures of the tests of training."""

from __future__ import annotations

import in_process
import pytest

from polypool.pipelines.training import launch


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs train in this process, and no Ray begin."""
    monkeypatch.setattr(launch, "fit", in_process.fit)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
