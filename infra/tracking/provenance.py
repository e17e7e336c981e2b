"""Which code and versions a result came from."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from infra.errors import InputError
from infra.tracking.machine import machine

COMMIT = "POLYPOOL_COMMIT"
"""Of the environment: the commit of code that was copied without its `.git`, to a cluster or into an image."""
PACKAGES = ("torch", "numpy", "transformers", "pyarrow", "ray", "mlflow")
"""Packages whose versions can change a result, or how it is made."""


def provenance(home: Path) -> dict[str, str]:
    """Return tags for a run: the git commit, whether files differ from it, the machine, and versions, plug-ins' too.

    Args:
        home: the project's home, whose checkout counts where the code itself runs from a copy without
            `.git`, as in a Ray job, and the environment does not name the commit.

    Raises:
        InputError: the environment names what is no commit.
    """
    tags = {"python": platform.python_version(), "machine": machine(), **_versions()}
    here, told = Path(__file__).parents[2], os.environ.get(COMMIT, "")
    if told and not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", told):
        raise InputError(f"{COMMIT} must be what `git rev-parse HEAD` prints, not {told!r:.80}")
    if told and not (here / ".git").exists():
        return {**tags, "git_commit": told, "mlflow.source.git.commit": told}
    checkouts = [folder for folder in (here, home) if (folder / ".git").exists()]
    if not checkouts:
        return {**tags, "git_commit": "unknown"}
    try:
        commit = _git(checkouts[0], "rev-parse", "HEAD")
        changed = _git(checkouts[0], "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return {**tags, "git_commit": "unknown"}
    dirty = str(bool(changed)).lower()
    return {**tags, "git_commit": commit, "git_dirty": dirty, "mlflow.source.git.commit": commit}


def command_line() -> str:
    """Return the command that this process carries out, as one would type it; empty where it is no verb of ours."""
    program, *words = sys.argv or [""]
    path = Path(program)
    if path.parent.name == "pipelines":
        return shlex.join(["python", "-m", f"pipelines.{path.stem}", *words])
    return shlex.join([*program.split(), *words]) if program.startswith("polypool ") else ""


def source_tags(command: str) -> dict[str, str]:
    """Return the tags that fill the column Source of MLflow's UI: what a run came from.

    The column is narrow, and begins with the verb. The UI shows what follows the last slash, so that the words before
    the first one are taken; the whole command has a tag of its own.

    Args:
        command: as of `command_line`.
    """
    words = shlex.split(command) or [Path((sys.argv or [""])[0]).name or "python"]
    if words[:2] == ["python", "-m"]:
        words = [words[2].rpartition(".")[2], *words[3:]]
    elif words[0] == "polypool":
        words = words[1:]
    kept = [*itertools.takewhile(lambda word: "/" not in word, words)]
    name = shlex.join(kept) + " ..." * (len(kept) < len(words))
    return {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"}


def _versions() -> dict[str, str]:
    """Return the versions of the packages that count, and of every package that plugs parts in."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    groups = sorted(group for group in entry_points().groups if group.startswith("polypool."))
    plugged = [point.dist for group in groups for point in entry_points(group=group) if point.dist]
    return versions | {f"plugin.{dist.name}": dist.version for dist in plugged}


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *args], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
