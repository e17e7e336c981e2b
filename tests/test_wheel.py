"""The wheel: its files, and its use next to user modules named like our folders."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from places import ROOT
from programs import begin, end

from polypool.pipelines.data.demonstration import workplace

FOLDERS = ("aggregators", "encoders", "infra", "pipelines", "polypool", "tasks")
TOP = ("pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Build a wheel of this tree and unpack it as in site-packages; return the folder."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("made")
    for file in TOP:
        shutil.copy(ROOT / file, tree)
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    program = f"from setuptools.build_meta import build_wheel; build_wheel({str(made)!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = made.glob("polypool-*.whl")
    ZipFile(wheel).extractall(made / "site")
    return made / "site"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder with modules that are named like our folders and fail on import."""
    made = tmp_path_factory.mktemp("user")
    (made / "infra").mkdir()
    for name in ("tasks.py", "encoders.py", "infra/__init__.py"):
        (made / name).write_text(f"raise ImportError('the {name} of the user is imported')\n")
    return made


def run(installed: Path, folder: Path, *words: str) -> str:
    """Run Python in the user's folder with only the unpacked wheel; return its output."""
    own = {"PYTHONPATH": str(installed), "POLYPOOL_HOME": str(folder / "home"), "COLUMNS": "200"}
    code, printed, errors = end(begin(*words, folder=folder, env=os.environ | own))
    assert code == 0, printed[-2000:] + errors[-4000:]
    return printed


def test_wheel_has_one_package_with_all_source_files(installed):
    (info,) = installed.glob("polypool-*.dist-info")
    assert {path.name for path in installed.iterdir()} == {"polypool", info.name}
    ours = {
        "polypool" / file.relative_to(ROOT / "polypool" if folder == "polypool" else ROOT)
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    there = {file.relative_to(installed) for file in installed.rglob("*")}
    assert Path("polypool/aggregators/ranks/kernels/sorted_sum.c") in ours
    assert any(file.suffix == ".css" for file in ours)
    assert ours <= there


def test_wheel_works_despite_user_modules_of_same_name(installed, folder):
    program = """if True:
        import os, sys
        from polypool.__main__ import main
        from polypool.pipelines.data.demonstration import workplace
        from polypool.tasks import run
        print(run.__file__, workplace(), os.listdir(workplace()))
        sys.argv = ["polypool", "train", "--list"]
        main()
    """
    first, _, recipes = run(installed, folder, "-c", program).partition("\n")
    file, job_folder, listed = first.split()
    assert file == str(installed / "polypool/tasks/run.py")
    assert (listed, workplace()) == ("[]", ROOT), "an installed package must run jobs in an empty folder"
    assert not Path(job_folder).exists(), "the job folder must be removed at exit"
    assert "coco_region_bigru" in recipes


@pytest.mark.slow
def test_installed_wheel_trains_compares_and_exports(installed, folder):
    sizes = ("--images", "60", "--videos", "40", "--epochs", "1", "--aggregators", "mean")
    run(installed, folder, "-m", "polypool", "demo", *sizes)
    runs = json.loads(run(installed, folder, "-m", "polypool", "runs", "--experiment", "demo", "--json"))
    (trained,) = [of for of in runs if of["recipe"] == "demo"]
    assert "mean" in run(installed, folder, "-m", "polypool", "compare", "--experiment", "demo")
    run(installed, folder, "-m", "polypool", "export", trained["run_id"], "--out", "model")
    text = "import polypool; m = polypool.load('model'); print(*m.encode_text(['a red square']).shape)"
    assert run(installed, folder, "-c", text).startswith("1 ")
