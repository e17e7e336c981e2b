"""Version and license agree in pyproject.toml, CITATION.cff and CHANGELOG.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_version_matches_citation_and_changelog():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert project["version"] == citation["version"] == newest[1]
    assert project["license"] == citation["license"]
