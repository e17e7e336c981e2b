"""Links between the repository's Markdown files, and the way to each page of the documentation."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from places import ROOT

from polypool.infra.registry import KINDS

FOLDERS = ("aggregators", "benchmarks", "docs", "encoders", "infra", "pipelines", "tasks", "tests")
GENERATED = ROOT / "docs/aggregators"
FILES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    if GENERATED not in path.parents
)
PARSER = MarkdownIt().enable("table")


def tokens(path: Path) -> Iterator[Token]:
    for token in PARSER.parse(path.read_text()):
        yield token
        yield from token.children or ()


def links(path: Path) -> list[tuple[Path, str]]:
    """Return the files, and the anchors in them, that a file links to."""
    targets = [token.attrs.get("href") or token.attrs.get("src", "") for token in tokens(path)]
    parts = [target.partition("#") for target in targets if target and not re.match(r"[a-z]+:|//", target)]
    return [((path.parent / file).resolve() if file else path, anchor) for file, _, anchor in parts]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a file's headings, as GitHub makes them."""
    found = [*tokens(path)]
    titles = [after.content for token, after in pairwise(found) if token.type == "heading_open"]
    text = path.read_text()
    for included in re.findall(r"```\{include\} (\S+)", text):
        titles += [title.replace("-", " ") for title in anchors((path.parent / included).resolve())]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_sections(path):
    for target, anchor in links(path):
        if GENERATED not in target.parents:
            assert target.exists(), target
            assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


def test_every_page_is_two_clicks_from_the_front_page():
    front = ROOT / "docs/index.md"
    one = {target for target, _ in links(front)} | {front}
    two = one | {
        target for page in one if page.suffix == ".md" and page.exists() for target, _ in links(page)
    }
    api = {path for path in FILES if path.is_relative_to(ROOT / "docs/api")}  # by its own table of contents
    assert {path for path in FILES if path.is_relative_to(ROOT / "docs")} - api <= two


def test_the_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 150


def test_the_glossary_has_at_most_40_terms_each_once():
    block = (ROOT / "docs/glossary.md").read_text().split("```{glossary}\n")[1]
    terms = re.findall(r"^(?!  )(\w.*)$", block, re.MULTILINE)
    assert len(terms) == len(set(terms)) <= 40


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_and_files_in_code_exist(path):
    text = path.read_text()
    groups = {f"polypool.{kind.group.partition('.')[2]}" for kind in KINDS.values()}
    names = {*re.findall(r"(?<![\w./-])polypool(?:\.\w+)+", text)} - groups - {"polypool.egg"}
    assert not [name for name in sorted(names) if not resolves(name)]
    folders = "aggregators|encoders|infra|pipelines|tasks|tests|docs|benchmarks"
    files = {*re.findall(rf"`((?:{folders})/[\w./-]+)`", text)}
    assert not [name for name in sorted(files) if not (ROOT / name).exists()]
