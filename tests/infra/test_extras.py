"""Extras: every package that is imported belongs to one, and the error for a missing package names it."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from polypool.infra.errors import InputError
from polypool.infra.extras import EXTRAS, MissingPackageError, needed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("aggregators", "encoders", "infra", "pipelines", "polypool", "tasks")
LIGHT = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}


def imported(node: ast.AST, within: str = "") -> set[tuple[str, str]]:
    """Return the packages that a file imports, each with the extra that a `with needed(extra)` around it names."""
    found = set()
    for child in ast.iter_child_nodes(node):
        named = (
            re.findall(r"""^with needed\(['"]([\w-]+)""", ast.unparse(child))
            if isinstance(child, ast.With)
            else []
        )
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            found |= {(alias.name.partition(".")[0], within) for alias in child.names}
        elif isinstance(child, ast.ImportFrom) and not child.level:
            found |= {(child.module.partition(".")[0], within)}
        else:
            found |= imported(child, *named or [within])
    return {(name, extra) for name, extra in found if name not in {*sys.stdlib_module_names, "polypool"}}


@cache
def brought(extra: str) -> set[str]:
    """Return the packages of an extra and all that they require, as far as these are installed."""
    found, waiting = set(), [Requirement(f"polypool[{extra}]")]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if name == "polypool":
            waiting += [
                Requirement(text)
                for extra in asked.extras
                for text in PROJECT["optional-dependencies"][extra]
            ]
            continue
        if name in found and not asked.extras:
            continue
        found.add(name)
        try:
            of = distribution(name).requires or []
        except ModuleNotFoundError:
            continue
        for requirement in map(Requirement, of):
            wanted = [{"extra": extra} for extra in ("", *asked.extras)]
            if not requirement.marker or any(map(requirement.marker.evaluate, wanted)):
                waiting.append(requirement)
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


def test_an_import_that_fails_names_the_extra():
    with pytest.raises(MissingPackageError) as raised, needed():
        raise ModuleNotFoundError("No module named 'tyro.conf'", name="tyro.conf")
    said = (
        "the package 'tyro' cannot be imported (No module named 'tyro.conf'); the extra 'train' brings it: "
    )
    assert str(raised.value) == f"{said}pip install 'polypool[train]'"
    assert isinstance(raised.value, InputError)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'mine'", name="mine"),
        ImportError("cannot import name 'x' from 'ray'", name="ray"),
        ValueError("tyro"),
    ],
)
def test_other_errors_stay_what_they_are(error):
    @needed()
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        fail()
    assert raised.value is error
