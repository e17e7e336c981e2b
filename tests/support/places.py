"""Folders that tests refer to."""

from __future__ import annotations

import tomllib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
_PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
# Import paths of the tests, for their subprocesses.
PATHS = [str((ROOT / path).resolve()) for path in _PYTEST["pythonpath"]]
