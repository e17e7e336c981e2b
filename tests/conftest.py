from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with recorded numbers and real corpora, beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(
            f"no folder {SHARED.name}/ beside the repository: its recorded numbers and real corpora are not at hand"
        )
    return SHARED


@pytest.fixture(scope="session")
def golden(shared: Path) -> Path:
    """Inputs, weights and outputs recorded from the authors' codes."""
    return shared / "golden"
