"""Hand-written pages: links, commands, names of code and files, and the notebook."""

import ast
import inspect
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from places import ROOT

import polypool as pp
from polypool.__main__ import main, verbs
from polypool.infra.registry import KINDS, RECIPES
from polypool.pipelines.models.trained import TrainedModel

FOLDERS = ("aggregators", "benchmarks", "docs", "encoders", "infra", "pipelines", "tasks", "tests")
PAGES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
FILES = sorted([*ROOT.glob("*.md"), *PAGES])
PARSER = MarkdownIt().enable("table")


def tokens(path: Path) -> Iterator[Token]:
    for token in PARSER.parse(path.read_text()):
        yield token
        yield from token.children or ()


def links(path: Path) -> list[tuple[Path, str]]:
    """Return the target file and anchor of each local link in a file."""
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
def test_links_resolve_to_files_and_sections(path):
    for target, anchor in links(path):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


def test_pages_are_within_two_clicks_of_front_page():
    front = ROOT / "docs/index.md"
    one = {target for target, _ in links(front)} | {front}
    pages = [page for page in one if page.suffix == ".md" and page.exists()]
    two = one | {target for page in pages for target, _ in links(page)}
    api = {path for path in FILES if path.is_relative_to(ROOT / "docs/api")}  # in its own toctree
    assert {path for path in FILES if path.is_relative_to(ROOT / "docs")} - api <= two


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documented_names_and_files_exist(path):
    text = path.read_text()
    groups = {f"polypool.{kind.group.partition('.')[2]}" for kind in KINDS.values()}
    names = {*re.findall(r"(?<![\w./-])polypool(?:\.\w+)+", text)} - groups - {"polypool.egg"}
    assert not [name for name in sorted(names) if not resolves(name)]
    folders = "aggregators|encoders|infra|pipelines|tasks|tests|docs|benchmarks"
    files = {*re.findall(rf"`((?:{folders})/[\w./-]+)`", text)}
    assert not [name for name in sorted(files) if not (ROOT / name).exists()]


COMMAND = re.compile(r"(?:^ {4}|`|python -m )(polypool [a-z].*?)(?:`|$)", re.MULTILINE)


def commands() -> dict[str, str]:
    """Map each documented command to the name of its file."""
    found = {}
    for path in FILES:
        if path.parent != ROOT and ROOT / "docs" not in path.parents:
            continue
        text = re.sub(r"<!-- table.*?end of table -->", "", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"\\\n +", "", text)
        found |= {command.partition(" #")[0]: path.name for command in COMMAND.findall(text)}
    return found


@cache
def help_of(*words: str) -> str:
    """Return what `polypool WORDS --help` prints."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown), redirect_stderr(shown):
        patch.setattr(sys, "argv", ["polypool", *words, "--help"])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code, shown.getvalue()
    return shown.getvalue()


def helps(verb: str, words: list[str]) -> str:
    """Return the help texts that list a command's options, including those of its sub-commands."""
    if verb == "train":
        return help_of("train") + help_of("train", "demo") + help_of("train", "rerun")
    if verb == "sweep":
        return help_of("sweep") + help_of("train", "demo")
    known, shown = [verb], help_of(verb)
    for word in words:
        if re.search(rf"[•{{,|] *{re.escape(word)}\b", shown) and re.fullmatch(r"[a-z][a-z0-9-]*", word):
            known.append(word)
            shown += help_of(*known)
    return shown


@pytest.mark.parametrize(("command", "file"), commands().items())
def test_documented_commands_and_options_exist(command, file):
    _, verb, *words = shlex.split(
        command.replace("'", "").replace('"', "").replace("$(", "").replace(")", "")
    )
    if verb == verb.upper():  # `polypool VERB`
        return
    assert verb in verbs(), f"{file}: {command}"
    if verb == "train" and words and re.fullmatch(r"[a-z]\w+", words[0]):
        assert words[0] in {*RECIPES.names(), "resume", "rerun"}, f"{file}: {command}"
    shown = helps(verb, words)
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert re.search(rf"{re.escape(option)}\b", shown), f"{file}: {command}"


def test_every_page_is_in_exactly_one_toctree():
    pages = {path for path in FILES if path.is_relative_to(ROOT / "docs")} - {ROOT / "docs/index.md"}
    trees = [
        (path.parent / f"{name}.md").resolve()
        for path in pages | {ROOT / "docs/index.md"}
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL)
        for name in re.findall(r"^[\w/-]+$", tree, re.MULTILINE)
    ]
    assert sorted(trees) == sorted(pages)
    # Sphinx writes its own pages under these names
    assert not {"search.md", "genindex.md"} & {path.name for path in pages}


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("leaderboard", "vqa2.md"),
        ("HDF5", "own-features.md"),
        ("resume", "resume.md"),
        ("GPU", "workers.md"),
        ("object storage", "places.md"),
        ("my own videos", "own-data.md"),
        ("significant", "statistics.md"),
        ("MSR-VTT", "public-data.md"),
        ("plug-in", "plug-ins.md"),
        ("Slurm", "cluster.md"),
    ],
)
def test_page_headings_contain_search_terms(query, page):
    lines = (ROOT / "docs" / page).read_text().splitlines()
    assert any(line.startswith("#") and query.lower() in line.lower() for line in lines)


class Instance:
    """Instance of a class in code that is parsed, not run."""

    def __init__(self, of: type) -> None:
        self.of = of


def value_of(node: ast.expr, names: dict[str, object]) -> object:
    """Return the module, function, class or `Instance` that an expression refers to; None if unknown."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, names)
        return getattr(owner.of if isinstance(owner, Instance) else owner, node.attr, None)
    if isinstance(node, ast.Call):
        called = value_of(node.func, names)
        kind = called if isinstance(called, type) else RETURNED.get(called)
        return Instance(kind) if kind else None
    return None


RETURNED = {pp.load: TrainedModel, pp.train: pp.TrainedRun}


def calls(code: str) -> Iterator[tuple[str, object, ast.Call, bool]]:
    """Yield source, function, node and whether it is a method, for each call of polypool."""
    names: dict[str, object] = {}
    for node in ast.walk(ast.parse(code)):  # breadth first: module level before nested
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in node.names:
                if f"{module}{name.name}".startswith("polypool"):
                    names[name.asname or name.name] = pkgutil.resolve_name(f"{module}{name.name}")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = value_of(node.value, names)
        elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            names[node.optional_vars.id] = value_of(node.context_expr, names)
        elif isinstance(node, ast.Call):
            called = value_of(node.func, names)
            if callable(called) and getattr(called, "__module__", "").startswith("polypool"):
                of = value_of(node.func.value, names) if isinstance(node.func, ast.Attribute) else None
                yield ast.unparse(node), called, node, isinstance(of, Instance)


def python(path: Path) -> list[str]:
    """Return the Python of a page: its blocks, and the calls in its sentences."""
    found = [*tokens(path)]
    blocks = [token.content for token in found if token.type == "fence" and token.info == "python"]
    inline = [token.content for token in found if token.type == "code_inline"]
    spans = [code for code in inline if re.match(r"(pp|polypool)\.[\w.]+\(.*\)", code) and "..." not in code]
    return blocks + [f"import polypool\nimport polypool as pp\n{code}" for code in spans]


CALLS = [(path.name, *call) for path in FILES for code in python(path) for call in calls(code)]


@pytest.mark.parametrize(
    ("page", "source", "called", "call", "method"), CALLS, ids=[f"{c[0]}: {c[1]}" for c in CALLS]
)
def test_documented_calls_match_signatures(page, source, called, call, method):
    positional = [None] * (len(call.args) + method)
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    inspect.signature(called).bind(*positional, **keywords)


NOTEBOOK = ROOT / "docs/examples/poolings.ipynb"


def cells(kind: str) -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.notebook
@pytest.mark.parametrize("photographs", [False, True], ids=["rendered", "photographs"])
def test_notebook_runs_from_top_to_bottom(photographs, request, tmp_path):
    program = tmp_path / "notebook.py"
    code = ["".join(cell["source"]) for cell in cells("code")]
    trained = {"mean", "kmax(k=2)", "attention"}
    last = (
        f'assert {{*table["row"]}} == {trained}\nassert "srcdoc=" in shown._repr_html_() and sheet.getbbox()'
    )
    # no `if __name__` guard, as in a kernel: Ray's workers do not import the program
    program.write_text("\n\n".join([*code, last]))
    with tempfile.TemporaryDirectory(prefix="nb") as short:  # Ray's socket paths are limited to 107 bytes
        environment = os.environ | {"TMPDIR": short, "POLYPOOL_EPOCHS": "1"}
        if photographs:
            environment["POLYPOOL_PICTURES"] = str(request.getfixturevalue("shared") / "data/flickr8k")
        command = [sys.executable, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout.splitlines()
    for spec in ("mean", "max", "kmax(k=2)", "gpo", "attention"):
        assert any(line.startswith(spec) and "(4, " in line for line in printed)
    assert sum("RSUM" in line for line in printed) == 3
    assert sum(line[:2] in ("1.", "5.") for line in printed) == 4


def test_notebook_is_stored_without_outputs():
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells("code"))
    assert all("".join(cell["source"]).strip() for cell in cells("markdown"))
