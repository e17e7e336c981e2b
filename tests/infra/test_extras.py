"""Extras: every imported package belongs to one, and the error for a missing package names it."""

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
    """Return the packages that a file imports, each with the extra of an enclosing `with needed(extra)`."""
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
    """Return the requirements of a package; none if it is not installed."""
    with suppress(PackageNotFoundError):
        return [*map(Requirement, distribution(name).requires or [])]
    return []


@cache
def brought(extra: str) -> set[str]:
    """Return the packages of an extra with transitive requirements, as far as these are installed."""
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


def test_imported_packages_come_with_their_named_extra():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    uses = {use for file in files for use in imported(ast.parse(file.read_text()))}
    table = {module: extra for extra, modules in EXTRAS.items() for module in modules.split()}
    installed, names = packages_distributions(), {"faiss": "faiss-cpu", "botocore": "boto3"}
    table |= {module: extra for module, extra in sorted(uses) if extra and module not in table}
    for module, extra in sorted(uses - {("triton", "")}):
        package = canonicalize_name(installed.get(module, [names.get(module, module)])[0])
        if package in LIGHT:
            continue
        assert module in table, f"{module} belongs to no extra: add it to infra/extras.py"
        from_extra = extra or table[module]
        assert package in brought(from_extra), f"the extra {from_extra!r} does not install {module}"
    assert {*table} <= {module for module, _ in uses}, "infra/extras.py lists a module that is never imported"
    assert ("spacy", "hgr") in uses


def test_core_is_torch_and_numpy_and_all_covers_extras():
    assert {"numpy", "torch"} == LIGHT
    extras = PROJECT["optional-dependencies"]
    everything = brought("all")
    for extra in EXTRAS:
        assert brought(extra) <= everything
    assert "polypool[all]" in extras["dev"], "dev must include all, so that `make env` supports every command"


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
def test_only_missing_package_errors_name_an_extra(error, message):
    with pytest.raises(Exception, match=message) as raised, needed():
        raise error
    assert isinstance(raised.value, MissingPackageError) == ("extra" in message)
