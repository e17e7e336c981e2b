"""Links of the repository's Markdown files to each other."""

from __future__ import annotations

import pytest
from places import ROOT

from docs.generate.links import links_of
from docs.generate.sections import sections

FOLDERS = ("aggregators", "docs", "encoders", "infra", "pipelines", "tasks", "tests")
FILES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_what_is_there(path):
    for link in links_of(path.read_text(), path.relative_to(ROOT).as_posix()):
        assert (ROOT / link.path).exists(), f"line {link.line}: {link.target}"
        if link.anchor:
            slugs = [section.slug for section in sections((ROOT / link.path).read_text())]
            assert link.anchor in slugs, f"line {link.line}: {link.target}"
