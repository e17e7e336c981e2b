from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stores import make_sets, write


@pytest.fixture
def sets() -> dict[str, np.ndarray]:
    """The sets of a small store, by id."""
    return make_sets()


@pytest.fixture
def folder(tmp_path: Path, sets: dict[str, np.ndarray]) -> Path:
    """The folder of a small store."""
    write(tmp_path / "store", sets)
    return tmp_path / "store"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store of one shard, with statistics."""
    write(tmp_path / "store", make_sets(7), statistics_of=["id0", "id3"])
    return tmp_path / "store"
