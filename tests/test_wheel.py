"""The wheel: what belongs into it, and what works where there is no repository; `make wheel-test` tries all of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from places import ROOT

PACKAGES = ("aggregators", "encoders", "infra", "pipelines", "tasks")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder that a wheel of this tree was unpacked into, as it is into site-packages."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("made")
    for file in ("polypool.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    words = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(made), str(tree)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = made.glob("polypool-*.whl")
    ZipFile(wheel).extractall(made / "site")
    return made / "site"


def python(installed: Path, folder: Path, *words: str) -> str:
    """Run Python in a folder with the unpacked wheel; return what it printed."""
    env = {**os.environ, "PYTHONPATH": str(installed), "POLYPOOL_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_every_file_of_the_packages(installed):
    ours = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    there = {str(file.relative_to(installed)) for file in installed.rglob("*")}
    assert {"pipelines/searching/templates/style.css", "aggregators/ranks/kernels/sorted_sum.c"} <= ours
    assert ours | {"polypool.py"} <= there
    assert not any(name.startswith("tests") for name in there)


def test_it_runs_without_the_repository(installed, tmp_path):
    shown = python(installed, tmp_path, "-c", "import pipelines; print(pipelines.__file__)")
    assert shown.strip() == str(installed / "pipelines/__init__.py")
    assert "coco_region_bigru" in python(installed, tmp_path, "-m", "pipelines.train", "--list")
    assert "search" in python(installed, tmp_path, "-m", "polypool", "--help")
    python(installed, tmp_path, "-m", "polypool", "check", "mean")


def test_a_job_of_the_demo_gets_the_checkout_and_of_an_installed_one_an_empty_folder(installed, tmp_path):
    program = "import os; from pipelines.demo import workplace; print(workplace(), os.listdir(workplace()))"
    folder, _, listed = python(installed, tmp_path, "-c", program).strip().partition(" ")
    assert listed == "[]"
    assert not Path(folder).exists(), "it is removed at the end"
    assert python(ROOT, tmp_path, "-c", program).startswith(f"{ROOT} ")
