"""Extras: every package that is imported belongs to one, and the error for a missing package names it."""

import ast
import re
import sys
import tomllib
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from polypool.infra.extras import EXTRAS, MissingPackageError, needed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("aggregators", "encoders", "infra", "pipelines", "polypool", "tasks")
LIGHT = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}


def imported(node: ast.AST, within: str = "") -> set[tuple[str, str]]:
    """Return the packages that a file imports, each with the extra that a `with needed(extra)` around it names."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            found |= {(alias.name.partition(".")[0], within) for alias in child.names}
        elif isinstance(child, ast.ImportFrom) and not child.level:
            found |= {(child.module.partition(".")[0], within)}
        elif isinstance(child, ast.stmt | ast.excepthandler):
            items = [ast.unparse(item) for item in child.items] if isinstance(child, ast.With) else []
            named = [extra for item in items for extra in re.findall(r"^needed\(['\"]([\w-]+)", item)]
            found |= imported(child, *named or [within])
    return {(name, extra) for name, extra in found if name not in {*sys.stdlib_module_names, "polypool"}}


@cache
def required(name: str) -> list[Requirement]:
    """Return what an installed package requires; nothing of one that is not installed."""
    with suppress(PackageNotFoundError):
        return [*map(Requirement, distribution(name).requires or [])]
    return []


@cache
def brought(extra: str) -> set[str]:
    """Return the packages of an extra and all that they require, as far as these are installed."""
    found, waiting = set(), [Requirement(f"polypool[{extra}]")]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if name == "polypool":
            named = [text for extra in asked.extras for text in PROJECT["optional-dependencies"][extra]]
            waiting += map(Requirement, named)
        elif name not in found or asked.extras:
            found.add(name)
            wanted = [{"extra": extra} for extra in ("", *asked.extras)]
            waiting += [of for of in required(name) if not of.marker or any(map(of.marker.evaluate, wanted))]
    return found


def test_every_package_that_is_imported_is_brought_by_the_extra_that_is_named():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    uses = {use for file in files for use in imported(ast.parse(file.read_text()))}
    table = {module: extra for extra, modules in EXTRAS.items() for module in modules.split()}
    installed, names = packages_distributions(), {"faiss": "faiss-cpu", "botocore": "boto3"}
    table |= {module: extra for module, extra in sorted(uses) if extra and module not in table}
    for module, extra in sorted(uses - {("triton", "")}):
        package = canonicalize_name(installed.get(module, [names.get(module, module)])[0])
        if package in LIGHT:
            continue
        assert module in table, f"{module} is of no extra: name it in infra/extras.py"
        from_extra = extra or table[module]
        assert package in brought(from_extra), f"{module} does not come with {from_extra!r}"
    assert {*table} <= {module for module, _ in uses}, "imported nowhere"
    assert ("spacy", "hgr") in uses


def test_dependencies_are_torch_and_numpy_and_all_has_what_verbs_need():
    assert {"numpy", "torch"} == LIGHT
    extras = PROJECT["optional-dependencies"]
    everything = brought("all")
    for extra in EXTRAS:
        assert brought(extra) <= everything
    assert "polypool[all]" in extras["dev"], "`make env` has every verb"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ModuleNotFoundError("No module named 'tyro.conf'", name="tyro.conf"),
            r"the package 'tyro' cannot be imported .*; the extra 'train' brings it: pip install 'polypool\[train\]'$",
        ),
        (ModuleNotFoundError("No module named 'mine'", name="mine"), "'mine'"),
        (ImportError("cannot import name 'x' from 'ray'", name="ray"), "name 'x'"),
        (ValueError("tyro"), "^tyro$"),
    ],
)
def test_only_the_import_of_a_missing_package_names_its_extra(error, message):
    with pytest.raises(Exception, match=message) as raised, needed():
        raise error
    assert isinstance(raised.value, MissingPackageError) == ("extra" in message)
